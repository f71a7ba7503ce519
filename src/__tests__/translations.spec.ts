import { Gettext } from '@jupyterlab/translation';
import * as fs from 'fs';
import * as path from 'path';
import * as ts from 'typescript';

const ROOT = path.join(__dirname, '../..');
const LOCALES = path.join(ROOT, 'notebookos_ext/locale');

type Catalogue = Record<string, string[] | Record<string, string>>;

/** Each text that is given to the translator, with its plural where it has one. */
function sourceTexts(): Map<string, string | null> {
  const found = new Map<string, string | null>();
  const visit = (node: ts.Node): void => {
    if (
      ts.isCallExpression(node) &&
      ts.isPropertyAccessExpression(node.expression) &&
      ['__', '_n'].includes(node.expression.name.text)
    ) {
      const [first, second] = node.arguments;
      const plural = node.expression.name.text === '_n';
      // Others could not be looked up.
      expect(ts.isStringLiteralLike(first)).toBe(true);
      found.set(
        (first as ts.StringLiteral).text,
        plural ? (second as ts.StringLiteral).text : null
      );
    }
    ts.forEachChild(node, visit);
  };
  for (const name of fs.readdirSync(path.join(ROOT, 'src'), {
    recursive: true
  }) as string[]) {
    if (/\.tsx?$/.test(name) && !name.includes('__tests__')) {
      const text = fs.readFileSync(path.join(ROOT, 'src', name), 'utf-8');
      visit(
        ts.createSourceFile(
          name,
          text,
          ts.ScriptTarget.Latest,
          true,
          name.endsWith('x') ? ts.ScriptKind.TSX : ts.ScriptKind.TS
        )
      );
    }
  }
  return found;
}

const placeholders = (text: string) => (text.match(/%\d/g) ?? []).sort();

describe.each(fs.readdirSync(LOCALES))('catalogue %s', locale => {
  const file = path.join(LOCALES, locale, 'LC_MESSAGES/notebookos_ext.json');
  const catalogue = JSON.parse(fs.readFileSync(file, 'utf-8')) as Catalogue;
  const keys = Object.keys(catalogue).filter(key => key !== '');
  const texts = sourceTexts();

  it('says whose it is and how its plurals are formed', () => {
    expect(catalogue['']).toMatchObject({
      domain: 'notebookos_ext',
      language: locale.replace('_', '-'),
      plural_forms: 'nplurals=2; plural=(n != 1);'
    });
  });

  it('is taken by the translator, plurals included', () => {
    const bundle = new Gettext({ locale: locale.replace('_', '-') });
    const headers = catalogue[''] as Record<string, string>;
    const data = {
      ...catalogue,
      '': { ...headers, pluralForms: headers.plural_forms }
    };
    bundle.loadJSON(data as never, 'notebookos_ext');
    const domain = 'notebookos_ext';
    expect(bundle.dcnpgettext(domain, '', 'Savings', '', 0)).toBe(
      (catalogue['Savings'] as string[])[0]
    );
    const count = (n: number) =>
      bundle.dcnpgettext(domain, '', '%1 replica', '%1 replicas', n);
    const [one, many] = catalogue['%1 replica'] as string[];
    expect([count(1), count(3)]).toEqual([
      one.replace('%1', '1'),
      many.replace('%1', '3')
    ]);
  });

  it('has every text of the source, and no other', () => {
    // Plurals are looked up by their singular.
    expect(keys.sort()).toEqual([...texts.keys()].sort());
  });

  it('has a form for each number, and keeps the places of values', () => {
    for (const [text, plural] of texts) {
      const forms = catalogue[text] as string[];
      expect(forms).toHaveLength(plural === null ? 1 : 2);
      for (const form of forms) {
        expect(form).toBeTruthy();
        expect([text, ...placeholders(form)]).toEqual([
          text,
          ...placeholders(text)
        ]);
      }
    }
  });
});
