/** Notebook 7 runs the same plugins: the indicator tells the executor there too. */
import { expect, test } from '@playwright/test';

const NOTEBOOK = 'notebook7.ipynb';

test.afterEach(async ({ request }) => {
  const sessions = await request.get('/api/sessions');
  for (const { id } of (await sessions.json()) as { id: string }[]) {
    await request.delete(`/api/sessions/${id}`);
  }
  await request.delete(`/api/contents/${NOTEBOOK}`);
});

test('shows the executor in Notebook 7', async ({ page, request }) => {
  const cell = {
    cell_type: 'code',
    execution_count: null,
    id: 'sum',
    metadata: {},
    outputs: [],
    source: '40 + 2'
  };
  const created = await request.put(`/api/contents/${NOTEBOOK}`, {
    data: {
      type: 'notebook',
      content: {
        cells: [cell],
        metadata: {
          kernelspec: {
            name: 'notebookos',
            display_name: 'Python 3 (NotebookOS)',
            language: 'python'
          },
          notebookos: { replica_count: 1 }
        },
        nbformat: 4,
        nbformat_minor: 5
      }
    }
  });
  expect(created.ok()).toBe(true);
  await page.goto(`/notebooks/${NOTEBOOK}`);
  const indicator = page.locator('.jp-NotebookOS-indicator');
  await expect(indicator).toContainText('idle', { timeout: 180000 });
  const chooser = page.locator('.jp-NotebookOS-chooser');
  await expect(chooser.getByLabel('Replicas')).toHaveValue('1');
  await expect(chooser.getByLabel('GPUs per cell')).toBeVisible();
  await page.locator('.jp-Cell .jp-InputArea-editor').first().click();
  await page.keyboard.press('Shift+Enter');
  await expect(page.locator('.jp-OutputArea-output').first()).toHaveText('42');
  await expect(indicator).toContainText('replica 1 on host-');
});
