/** The whole path: run the demo, see GPUs change hands, lose the executor, run on. */
import { expect, IJupyterLabPageFixture, test } from '@jupyterlab/galata';
import * as fs from 'fs';
import * as path from 'path';

import { heldDevices, kernelCard, kernelOf, openPanel } from './cluster';

const ROOT = path.join(__dirname, '../..');
const NOTEBOOK = 'train_digits.ipynb';
const SCREENSHOT = path.join(ROOT, 'docs/screenshot.png');

/** Wide enough for the tables to stay on one line each. */
const PANEL_WIDTH = 400;

/** What the test adds to its copy of the demo. */
const EXTRA = [
  // Holds a GPU until the test has looked.
  '%%gpu 1\nimport os, time\nwhile not os.path.exists("seen"):\n    time.sleep(0.05)\nprint("seen by the browser")',
  'train(1)\nprint(len(history), "epochs;", type(model).__name__, "is still here")'
];

type Notebook = {
  cells: { cell_type: string; source: string | string[] }[];
};

function demo(): Notebook {
  const file = path.join(ROOT, 'examples', NOTEBOOK);
  const notebook = JSON.parse(fs.readFileSync(file, 'utf-8')) as Notebook;
  const code = EXTRA.map((source, index) => ({
    cell_type: 'code',
    execution_count: null,
    id: `extra-${index}`,
    metadata: {},
    outputs: [],
    source
  }));
  return { ...notebook, cells: [...notebook.cells, ...code] };
}

async function outputOf(
  page: IJupyterLabPageFixture,
  index: number
): Promise<string> {
  return ((await page.notebook.getCellTextOutput(index)) ?? []).join('\n');
}

async function run(page: IJupyterLabPageFixture, index: number) {
  await page.notebook.selectCells(index);
  await page.keyboard.press('Control+Enter');
}

/** Run a cell and wait for its new number, which comes with its reply. */
async function runAndWait(
  page: IJupyterLabPageFixture,
  index: number
): Promise<string> {
  const prompt = page
    .locator('.jp-Notebook .jp-Cell')
    .nth(index)
    .locator('.jp-InputPrompt');
  const before = await prompt.textContent();
  await run(page, index);
  await expect
    .poll(
      async () => {
        const now = (await prompt.textContent()) ?? '';
        return now !== before && /\[\d+\]:/.test(now);
      },
      { timeout: 180000 }
    )
    .toBe(true);
  return outputOf(page, index);
}

// Galata's stand-in for the kernels' REST answers a restart with a status that JupyterLab takes for
// a failure, so the real one is used, and what it started is ended here.
test.use({ kernels: null, sessions: null });

test.afterEach(async ({ page }, testInfo) => {
  if (testInfo.status !== testInfo.expectedStatus) {
    const answer = await page.request.get('/notebookos/api/cluster');
    await testInfo.attach('cluster', { body: await answer.text() });
  }
  const sessions = await page.request.get('/api/sessions');
  for (const { id } of (await sessions.json()) as { id: string }[]) {
    await page.request.delete(`/api/sessions/${id}`);
  }
});

test('runs the demo, loses its executor and runs on', async ({
  page,
  tmpPath
}) => {
  const notebook = demo();
  const file = `${tmpPath}/${NOTEBOOK}`;
  await page.contents.uploadContent(JSON.stringify(notebook), 'text', file);
  await page.filebrowser.refresh();
  await page.notebook.openByPath(file);
  await page.notebook.activate(NOTEBOOK);
  const panel = await openPanel(page);
  await page.sidebar.setWidth(PANEL_WIDTH, 'left');
  const card = kernelCard(panel, NOTEBOOK);

  // The kernel has its three replicas, on hosts with GPUs that are called simulated.
  await expect(card.locator('[data-replica][data-state=idle]')).toHaveCount(3, {
    timeout: 180000
  });
  await expect(panel.locator('[data-device]').first()).toContainText(
    'simulated'
  );
  await expect(heldDevices(panel)).toHaveCount(0);

  // Every cell of the demo runs, and training is told to have bound a GPU.
  const demoCells = notebook.cells.length - EXTRA.length;
  for (let index = 0; index < demoCells; index++) {
    if (notebook.cells[index].cell_type === 'code') {
      const output = await runAndWait(page, index);
      expect(output).not.toContain('Error');
      // Nothing in the demo is held, lost or late.
      expect(output).not.toContain('NotebookOS');
    }
  }
  expect(await outputOf(page, demoCells - 1)).toContain(
    'the optimizer still refers'
  );
  const trained = (await kernelOf(page, NOTEBOOK)).cells.filter(
    cell => cell.devices.length > 0
  );
  expect(trained.length).toBeGreaterThan(0);
  await expect(
    card.locator('[data-cell]', { hasText: '(simulated)' }).first()
  ).toBeVisible();

  // A GPU is held while a cell runs, and free when it has ended.
  const holding = demoCells;
  await run(page, holding);
  await expect(heldDevices(panel)).toHaveCount(1);
  await expect(heldDevices(panel)).toContainText(`${NOTEBOOK}, replica`);
  await expect(page.locator('.jp-NotebookOS-indicator')).toContainText(
    'running, GPU'
  );
  if (process.env.UPDATE_SCREENSHOT) {
    fs.mkdirSync(path.dirname(SCREENSHOT), { recursive: true });
    await page.screenshot({ path: SCREENSHOT });
  }
  await page.contents.uploadContent('', 'text', `${tmpPath}/seen`);
  await expect
    .poll(() => outputOf(page, holding))
    .toContain('seen by the browser');
  await expect(heldDevices(panel)).toHaveCount(0);

  // Two replicas more, while the kernel is used.
  await panel.getByLabel('Replicas', { exact: true }).selectOption('5');
  await expect(card).toContainText('5 replicas, 1 GPU per cell', {
    timeout: 60_000
  });
  expect((await kernelOf(page, NOTEBOOK)).next_replica_count).toBe(5);

  // The executor's process is killed; the next cell runs on another and lacks nothing.
  const before = await kernelOf(page, NOTEBOOK);
  const executor = before.replicas.find(replica => replica.executor);
  expect(executor?.pid).toBeGreaterThan(0);
  process.kill(executor!.pid!, 'SIGKILL');
  const output = await runAndWait(page, holding + 1);
  expect(output).toContain('9 epochs; DigitNet is still here');
  const after = await kernelOf(page, NOTEBOOK);
  expect(after.replicas.find(replica => replica.executor)?.pid).not.toBe(
    executor!.pid
  );

  // The kernel is back to its replica count, with a new process in the lost one's place.
  await expect
    .poll(
      async () =>
        (await kernelOf(page, NOTEBOOK)).replicas.filter(
          replica => replica.state !== 'lost' && replica.pid !== executor!.pid
        ).length
    )
    .toBe(5);
  await expect(card.locator('[data-replica][data-state=idle]')).toHaveCount(5);

  // After a restart the kernel serves again, with as many.
  await page.menu.clickMenuItem('Kernel>Restart Kernel…');
  await page.getByRole('button', { name: 'Confirm Kernel Restart' }).click();
  await expect(card.locator('[data-replica][data-state=idle]')).toHaveCount(5, {
    timeout: 180000
  });
  expect(await runAndWait(page, holding)).toContain('seen by the browser');
});
