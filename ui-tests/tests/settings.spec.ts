/** What a notebook asks for: the quick chooser in its toolbar, and the form with all settings. */
import AxeBuilder from '@axe-core/playwright';
import { expect, IJupyterLabPageFixture, test } from '@jupyterlab/galata';

import { openPanel } from './cluster';
import {
  endSessions,
  openNotebook,
  picture,
  sample,
  serve,
  text
} from './fixed';

const NOTEBOOK = 'settings.ipynb';

// The real sessions: the stand-ins of the test helper know only what it started.
test.use({ kernels: null, sessions: null });

/** Takes changes as the server would, and gives what was asked for. */
async function takeChanges(page: IJupyterLabPageFixture): Promise<object[]> {
  const asked: object[] = [];
  await page.route('**/notebookos/api/kernels/*', route => {
    asked.push(route.request().postDataJSON() as object);
    return route.fulfill({
      contentType: 'application/json',
      body: text('settings-result')
    });
  });
  return asked;
}

test.beforeEach(async ({ page, tmpPath }) => {
  const view = sample();
  await serve(page, () => view);
  await openNotebook(page, tmpPath, NOTEBOOK, { a: 'import torch' }, view);
});

test.afterEach(({ page }) => endSessions(page));

for (const theme of ['JupyterLab Light', 'JupyterLab Dark']) {
  test(`GPUs and replicas are chosen in the toolbar by keyboard, in ${theme}`, async ({
    page
  }) => {
    await page.theme.setTheme(theme);
    const asked = await takeChanges(page);
    const chooser = page.locator('.jp-NotebookOS-chooser');
    const gpus = chooser.getByLabel('GPUs per cell');
    await expect(gpus).toHaveValue('1');
    await expect(chooser.getByLabel('Replicas')).toHaveValue('5');
    const { violations } = await new AxeBuilder({ page })
      .include('.jp-NotebookOS-chooser')
      .analyze();
    expect(violations).toEqual([]);
    await gpus.focus();
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('Enter');
    await expect(gpus).toHaveValue('2');
    await expect.poll(() => asked).toEqual([{ gpus_per_cell: 2 }]);
  });
}

test('the form in the panel asks for types, memory, waits and sync', async ({
  page
}) => {
  const asked = await takeChanges(page);
  const panel = await openPanel(page);
  await page.sidebar.setWidth(400, 'left');
  const form = panel.locator('form');
  const type = form.getByLabel('GPU type');
  await expect(type).toHaveValue('Simulated GPU');
  await picture(form, 'settings');
  await type.selectOption('H200');
  await form.getByLabel('Longest wait for GPUs (s)').fill('30');
  await expect
    .poll(() => asked[asked.length - 1])
    .toEqual({ gpu_type: 'H200', gpu_wait_s: 30 });
  await expect(
    page.locator('.Toastify__toast', {
      hasText: 'Settings of settings.ipynb. Replicas: 5, as soon as hosts allow'
    })
  ).not.toHaveCount(0);
});

test('the property inspector has the same form', async ({ page }) => {
  await page.sidebar.openTab('jp-property-inspector');
  const inspector = page.locator('.jp-PropertyInspector');
  const section = inspector
    .locator('.jp-Collapse')
    .filter({ hasText: 'NotebookOS' });
  await section.getByText('NotebookOS', { exact: true }).first().click();
  const field = (label: string) =>
    section
      .locator('.jp-FormGroup-content')
      .filter({ hasText: label })
      .last()
      .locator('input, select');
  for (const label of [
    'Replicas',
    'GPUs per cell',
    'Longest wait for GPUs (s)',
    'GPU type',
    'Memory per GPU (GiB)',
    'Memory of the host (GiB)',
    'Sync'
  ]) {
    // Nothing is written before somebody has chosen.
    await expect(field(label)).toHaveValue('');
  }
  const asked = await takeChanges(page);
  await field('GPUs per cell').fill('2');
  await expect
    .poll(() => asked[asked.length - 1])
    .toEqual({ gpus_per_cell: 2 });
});
