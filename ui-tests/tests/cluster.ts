/** What the browser tests ask the server, and what they look for in the panel. */
import type { IJupyterLabPageFixture } from '@jupyterlab/galata';
import type { Locator } from '@playwright/test';

export const SIDEBAR = 'notebookos-ext-sidebar';

export type Replica = {
  number: number;
  pid: number | null;
  state: string;
  executor: boolean;
};

export type Kernel = {
  id: string;
  notebook_path: string;
  replica_count: number;
  next_replica_count: number;
  replicas: Replica[];
  cells: { replica_id: string; devices: number[]; state: string }[];
};

/** The kernel of a notebook, as the server tells it now. */
export async function kernelOf(
  page: IJupyterLabPageFixture,
  notebook: string
): Promise<Kernel> {
  const response = await page.request.get('/notebookos/api/cluster');
  if (!response.ok()) {
    throw new Error(`the cluster answered ${response.status()}`);
  }
  const { kernels } = (await response.json()) as { kernels: Kernel[] };
  const found = kernels.find(kernel => kernel.notebook_path.endsWith(notebook));
  if (!found) {
    throw new Error(`no kernel runs ${notebook}`);
  }
  return found;
}

/** Open the panel; gives its element. */
export async function openPanel(
  page: IJupyterLabPageFixture
): Promise<Locator> {
  await page.sidebar.openTab(SIDEBAR);
  const panel = page.locator(`#${SIDEBAR}`);
  await panel.waitFor();
  return panel;
}

/** The part of the panel about one notebook's kernel. */
export function kernelCard(panel: Locator, notebook: string): Locator {
  return panel.locator('[data-kernel]').filter({ hasText: notebook });
}

/** Devices that somebody holds, all hosts together. */
export function heldDevices(panel: Locator): Locator {
  return panel.locator('[data-device][data-held=true]');
}
