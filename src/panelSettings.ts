/** What one open notebook asks for, and how that is changed. */
import type { NotebookPanel } from '@jupyterlab/notebook';

import {
  METADATA_KEY,
  NotebookSettings,
  readSettings,
  settingsOf,
  statedSettings
} from './notebookSettings';
import type { Kernel } from './wire';

/** What its metadata says; where that is silent, what its kernel does. */
export function panelSettings(
  panel: NotebookPanel | null,
  kernel: Kernel | undefined
): NotebookSettings {
  return readSettings(
    panel?.model?.getMetadata(METADATA_KEY),
    kernel && settingsOf(kernel)
  );
}

/** Writes a change into the metadata; who watches the metadata tells the server. */
export function changeSettings(
  panel: NotebookPanel | null,
  change: Partial<NotebookSettings>
): void {
  const model = panel?.model;
  if (model && !model.readOnly) {
    const metadata = model.getMetadata(METADATA_KEY) as object | undefined;
    model.setMetadata(METADATA_KEY, {
      ...metadata,
      ...statedSettings(metadata, readSettings(metadata)),
      ...change
    });
  }
}
