/**
 * Status bar, notifications, lines under cells and a large cluster, with fixed data.
 *
 * UPDATE_SCREENSHOT writes the pictures of `docs/user-guide.md` anew.
 */
import AxeBuilder from '@axe-core/playwright';
import { expect, test } from '@jupyterlab/galata';
import * as fs from 'fs';

import { openPanel } from './cluster';
import {
  endSessions,
  openNotebook,
  picture,
  sample,
  serve,
  text,
  View
} from './fixed';

const NOTEBOOK = 'surfaces.ipynb';

// The real sessions: the stand-ins of the test helper know only what it started.
test.use({ kernels: null, sessions: null });

test.afterEach(({ page }) => endSessions(page));

test('status bar and notifications tell, each once', async ({ page }) => {
  await serve(page, sample);
  const item = page.locator('.jp-NotebookOS-statusButton');
  await expect(item).toContainText('2/4 GPUs · 1 waiting · 2 warnings');
  await expect(page.locator('.Toastify__toast')).toHaveCount(3);
  const { violations } = await new AxeBuilder({ page })
    .include('.jp-NotebookOS-statusItem')
    .analyze();
  expect(violations).toEqual([]);
  await picture(page.locator('#jp-main-statusbar'), 'status-bar');
  await picture(page.locator('.Toastify__toast').first(), 'notification');
  await item.focus();
  await page.keyboard.press('Enter');
  const panel = page.locator('#notebookos-ext-sidebar');
  await expect(panel).toBeVisible();
  await page.sidebar.setWidth(400, 'left');
  await panel.locator('summary', { hasText: 'Savings' }).click();
  await expect(panel.getByText('Waits of GPU cells')).toBeVisible();
  await expect(panel.locator('figcaption')).toContainText('GPUs over time');
  const savings = await new AxeBuilder({ page })
    .include('[data-section=savings]')
    .analyze();
  expect(savings.violations).toEqual([]);
  await picture(panel.locator('[data-section=savings]'), 'savings');
  await panel.evaluate(node => node.scrollTo(0, 0));
  await picture(panel, 'panel');
});

test('lines stand under GPU cells, and those that wait can be cancelled', async ({
  page,
  tmpPath
}) => {
  let view = sample();
  await serve(page, () => view);
  const code = {
    'cell-3': 'for epoch in range(20):\n    train(epoch)',
    'cell-1': 'import torch'
  };
  // The sample's first kernel is the notebook's.
  await openNotebook(page, tmpPath, NOTEBOOK, code, view);
  const lines = page.locator('.jp-NotebookOS-cellLine');
  await expect(lines).toHaveText([
    /^waited 413 ms · host-2 · GPU 0 \(simulated\) · running/
  ]);
  await picture(page.locator('.jp-Notebook .jp-Cell').first(), 'cell-line');
  await picture(page.locator('.jp-NotebookPanel-toolbar'), 'toolbar');

  const { id } = view.kernels[0];
  const waits = JSON.parse(
    text('cluster')
      .replace(/b2c4e8f0[\w-]*/g, id)
      .replace('cell-9', 'cell-1')
  ) as View;
  waits.kernels = [waits.kernels[1]];
  view = waits;
  await expect(lines).toContainText([
    'waiting, place 1: 2 GPUs needed, 1 free on host-1'
  ]);
  const { violations } = await new AxeBuilder({ page })
    .include('.jp-NotebookOS-cellLine')
    .analyze();
  expect(violations).toEqual([]);
  await picture(lines.first(), 'cell-waits');
  const interrupted = page.waitForRequest(`**/api/kernels/${id}/interrupt*`);
  await lines.getByRole('button', { name: 'Cancel' }).click();
  await interrupted;
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
  const last = panel.locator('[data-kernel="kernel-999"]');
  // Parts that come near grow from their guessed height, so that the last one moves away once more.
  await expect(async () => {
    await last.scrollIntoViewIfNeeded();
    await expect(last.locator('[data-replica]')).toHaveCount(3, {
      timeout: 2000
    });
  }).toPass();
  // What new data costs is kept for the record; a shared machine decides nothing by it.
  const redraw_ms = await page.evaluate(async () => {
    const begin = performance.now();
    await window.jupyterapp.commands.execute('notebookos-ext:refresh');
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    return Math.round(performance.now() - begin);
  });
  const file = test.info().outputPath('redraw.json');
  fs.writeFileSync(file, JSON.stringify({ kernels: 1000, redraw_ms }));
  await test.info().attach('redraw of 1,000 kernels', { path: file });
});
