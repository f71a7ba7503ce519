/** The panel with fixed data: what it shows, in both themes, with the keyboard, and unplugged. */
import AxeBuilder from '@axe-core/playwright';
import { expect, test } from '@jupyterlab/galata';
import * as fs from 'fs';
import * as path from 'path';

import { openPanel, SIDEBAR } from './cluster';

const SAMPLES = path.join(__dirname, '../../tests/testdata/wire');
const cluster = fs.readFileSync(path.join(SAMPLES, 'cluster.json'), 'utf-8');
const API = '**/notebookos/api/cluster*';

/** What the mocked server does with the next request. */
type Answer = 'cluster' | 'no connection' | 'no extension';

test.describe('panel', () => {
  let answer: Answer;

  test.beforeEach(async ({ page }) => {
    answer = 'cluster';
    await page.route(API, route => {
      switch (answer) {
        case 'cluster':
          return route.fulfill({
            contentType: 'application/json',
            body: cluster
          });
        case 'no connection':
          return route.abort('connectionrefused');
        case 'no extension':
          return route.fulfill({ status: 404 });
      }
    });
  });

  for (const theme of ['JupyterLab Light', 'JupyterLab Dark']) {
    test(`is accessible in ${theme}`, async ({ page }) => {
      await page.theme.setTheme(theme);
      const panel = await openPanel(page);
      await expect(panel.locator('[data-host]')).toHaveCount(3);
      await expect(panel.locator('[data-kernel]')).toHaveCount(2);
      const { violations } = await new AxeBuilder({ page })
        .include(`#${SIDEBAR}`)
        .analyze();
      expect(violations).toEqual([]);
    });
  }

  test('folds and unfolds its sections by keyboard', async ({ page }) => {
    const panel = await openPanel(page);
    const host = panel.locator('[data-host=host-1]');
    await expect(host).toBeVisible();
    await panel.locator('summary', { hasText: 'Hosts (3)' }).focus();
    await page.keyboard.press('Enter');
    await expect(host).toBeHidden();
    await page.keyboard.press('Enter');
    await expect(host).toBeVisible();
  });

  test('does what its buttons say by keyboard alone', async ({ page }) => {
    const asked: string[] = [];
    await page.route('**/notebookos/api/{kernels,hosts}**', route => {
      const request = route.request();
      const { pathname } = new URL(request.url());
      const what = pathname.split('/api/')[1].replace(/[0-9a-f-]{36}/, 'ID');
      asked.push(`${request.method()} ${what} ${request.postData() ?? ''}`);
      return route.fulfill({
        status: 409,
        json: { message: 'No.', hint: '', error: 'Infeasible' }
      });
    });
    const panel = await openPanel(page);
    // Far parts of the panel are drawn when they come near.
    await panel.locator('[data-kernel]').first().scrollIntoViewIfNeeded();
    const press = async (name: string) => {
      await panel.getByRole('button', { name, exact: true }).focus();
      await page.keyboard.press('Enter');
    };
    await press(
      'Run the next cell of train_digits.ipynb on replica 3 if it can'
    );
    await press('Add a host');
    await press('Remove host-1 once its replicas have moved away');
    await expect
      .poll(() => asked)
      .toEqual([
        'PUT kernels/ID/executor {"replica":3}',
        'POST hosts ',
        'PUT hosts/host-1/drain {"release":true}'
      ]);
    // What is refused is told.
    await expect(
      page.locator('.Toastify__toast', { hasText: 'No.' })
    ).not.toHaveCount(0);
  });

  test('fits a narrow side, and moves nothing that need not move', async ({
    page
  }) => {
    await page.emulateMedia({ reducedMotion: 'reduce' });
    const panel = await openPanel(page);
    await expect(panel.locator('[data-host]')).toHaveCount(3);
    await page.sidebar.setWidth(250, 'left');
    // What is wider than the panel scrolls in its own part; the panel itself does not.
    const { wide, moving } = await panel.evaluate(node => ({
      wide: node.scrollWidth - node.clientWidth,
      moving: Array.from(node.querySelectorAll('*'))
        .map(part => getComputedStyle(part))
        .filter(
          style =>
            style.animationName !== 'none' ||
            style.transitionDuration.split(', ').some(s => parseFloat(s) > 0)
        ).length
    }));
    expect(wide).toBeLessThanOrEqual(0);
    expect(moving).toBe(0);
  });

  test('says when it is disconnected, and recovers by itself', async ({
    page
  }) => {
    const panel = await openPanel(page);
    const status = panel.getByRole('status');
    await expect(panel.locator('[data-host]')).toHaveCount(3);
    answer = 'no connection';
    await expect(status).toContainText('Disconnected since');
    await expect(panel.locator('[data-host]')).toHaveCount(3);
    answer = 'cluster';
    await expect(status).toBeEmpty();
  });

  test('says what to do when the server side is missing', async ({ page }) => {
    answer = 'no extension';
    const panel = await openPanel(page);
    await expect(panel.getByRole('status')).toContainText(
      'no NotebookOS extension'
    );
  });

  test('moves to the side that the settings name', async ({ page }) => {
    const panel = await openPanel(page);
    await page.evaluate(async () => {
      const settings = await window.galata.getPlugin(
        '@jupyterlab/apputils-extension:settings' as never
      );
      await (
        settings as unknown as {
          set: (id: string, key: string, value: string) => Promise<void>;
        }
      ).set('notebookos-ext:preferences', 'side', 'right');
    });
    await expect(
      page.locator('#jp-right-stack #notebookos-ext-sidebar')
    ).toHaveCount(1);
    await expect(panel).toHaveCount(1);
  });
});
