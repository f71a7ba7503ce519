/** A cluster of fixed data in the server's place, and pictures of what is made of it. */
import type { IJupyterLabPageFixture } from '@jupyterlab/galata';
import { expect } from '@jupyterlab/galata';
import type { Locator } from '@playwright/test';
import * as fs from 'fs';
import * as path from 'path';

const ROOT = path.join(__dirname, '../..');
const SAMPLES = path.join(ROOT, 'tests/testdata/wire');
const API = '**/notebookos/api/cluster*';
const USAGE = '**/notebookos/api/usage**';

export type View = {
  kernels: { id: string; notebook_path: string }[];
};

/** A sample that pytest and jest read too. */
export const text = (name: string): string =>
  fs.readFileSync(path.join(SAMPLES, `${name}.json`), 'utf-8');
export const sample = (): View => JSON.parse(text('cluster')) as View;

/** Answers for the server with what `view` is at that time. */
export async function serve(
  page: IJupyterLabPageFixture,
  view: () => View
): Promise<void> {
  await page.route(API, route =>
    route.fulfill({
      contentType: 'application/json',
      body: JSON.stringify(view())
    })
  );
  await page.route(USAGE, route =>
    route.fulfill({
      contentType: 'application/json',
      body: text(
        route.request().url().includes('timeline') ? 'timeline' : 'usage'
      )
    })
  );
}

/** A picture for the user's guide, if pictures are wanted. */
export async function picture(what: Locator, name: string): Promise<void> {
  if (process.env.UPDATE_SCREENSHOT) {
    await what.screenshot({ path: path.join(ROOT, 'docs', `${name}.png`) });
  }
}

/** Opens a notebook of these cells; the first kernel of `view` passes for its kernel from then on. */
export async function openNotebook(
  page: IJupyterLabPageFixture,
  folder: string,
  name: string,
  cells: Record<string, string>,
  view: View
): Promise<void> {
  const notebook = {
    cells: Object.entries(cells).map(([id, source]) => ({
      cell_type: 'code',
      execution_count: null,
      id,
      metadata: {},
      outputs: [],
      source
    })),
    metadata: {
      kernelspec: { name: 'python3', display_name: 'Python 3', language: '' }
    },
    nbformat: 4,
    nbformat_minor: 5
  };
  const file = `${folder}/${name}`;
  await page.contents.uploadContent(JSON.stringify(notebook), 'text', file);
  await page.filebrowser.refresh();
  await page.notebook.openByPath(file);
  await page.notebook.activate(name);
  await expect
    .poll(async () => {
      const answer = await page.request.get('/api/sessions');
      const sessions = (await answer.json()) as { kernel: { id: string } }[];
      view.kernels[0].id = sessions[0]?.kernel.id ?? '';
      return view.kernels[0].id;
    })
    .not.toBe('');
}

/** Ends what a test started. */
export async function endSessions(page: IJupyterLabPageFixture): Promise<void> {
  const sessions = await page.request.get('/api/sessions');
  for (const { id } of (await sessions.json()) as { id: string }[]) {
    await page.request.delete(`/api/sessions/${id}`);
  }
}
