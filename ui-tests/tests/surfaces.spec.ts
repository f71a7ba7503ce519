/** Status bar, lines under cells, palette, notifications and a large cluster, with fixed data. */
import AxeBuilder from '@axe-core/playwright';
import { expect, IJupyterLabPageFixture, test } from '@jupyterlab/galata';
import * as fs from 'fs';
import * as path from 'path';

import { openPanel } from './cluster';

const SAMPLES = path.join(__dirname, '../../tests/testdata/wire');
const API = '**/notebookos/api/cluster*';

type View = {
  kernels: { id: string; notebook_path: string }[];
};

const sample = () =>
  JSON.parse(
    fs.readFileSync(path.join(SAMPLES, 'cluster.json'), 'utf-8')
  ) as View;

/** Answers for the server with what `view` is at that time. */
async function serve(page: IJupyterLabPageFixture, view: () => View) {
  await page.route(API, route =>
    route.fulfill({
      contentType: 'application/json',
      body: JSON.stringify(view())
    })
  );
}

test('status bar and notifications tell, each once', async ({ page }) => {
  await serve(page, sample);
  const item = page.locator('.jp-NotebookOS-statusButton');
  await expect(item).toContainText('2/4 GPUs · 1 waiting · 2 warnings');
  await expect(page.locator('.Toastify__toast')).toHaveCount(2);
  const { violations } = await new AxeBuilder({ page })
    .include('.jp-NotebookOS-statusItem')
    .analyze();
  expect(violations).toEqual([]);
  await item.focus();
  await page.keyboard.press('Enter');
  await expect(page.locator('#notebookos-ext-sidebar')).toBeVisible();
});

test('a thousand kernels leave the page usable', async ({ page }) => {
  const view = sample();
  const [first] = view.kernels;
  view.kernels = Array.from({ length: 1000 }, (_, index) => ({
    ...first,
    id: `kernel-${index}`,
    notebook_path: `notebook-${index}.ipynb`
  }));
  await serve(page, () => view);
  const panel = await openPanel(page);
  await expect(panel.locator('[data-kernel]')).toHaveCount(1000);
  // Most of them are headings alone.
  expect(await panel.locator('[data-replica]').count()).toBeLessThan(300);
  await panel.locator('[data-kernel="kernel-999"]').scrollIntoViewIfNeeded();
  await expect(
    panel.locator('[data-kernel="kernel-999"] [data-replica]')
  ).toHaveCount(3);
  // What a redraw with new data takes, for the record; a shared machine decides nothing by it.
  const took_ms = await page.evaluate(async () => {
    const begin = performance.now();
    await window.jupyterapp.commands.execute('notebookos-ext:refresh');
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    return performance.now() - begin;
  });
  test.info().annotations.push({
    type: 'redraw of 1,000 kernels',
    description: `${Math.round(took_ms)} ms`
  });
});
