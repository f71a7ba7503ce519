/** Brings replica count and GPUs per cell from each notebook's metadata to its kernel. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import {
  ITranslator,
  nullTranslator,
  TranslationBundle
} from '@jupyterlab/translation';

import { Refused } from '../request';
import { IClusterModel } from '../tokens';
import { ISettingsListener, SettingsSync } from '../widgets/settingsSync';

const SHOWN_MS = 6000;

export const notebookSettingsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:notebook-settings',
  description:
    'Tells the server of the replica count and the GPUs per cell of each notebook.',
  autoStart: true,
  requires: [IClusterModel, INotebookTracker],
  optional: [ITranslator],
  activate: (
    _app: JupyterFrontEnd,
    model: IClusterModel,
    tracker: INotebookTracker,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    const listener = notifier(trans);
    const follow = (panel: NotebookPanel) =>
      new SettingsSync(panel, model, listener);
    tracker.forEach(follow);
    tracker.widgetAdded.connect((_tracker, panel) => {
      follow(panel);
    });
  }
};

function notifier(trans: TranslationBundle): ISettingsListener {
  return {
    applied: (notebook, result) => {
      for (const [setting, when] of Object.entries(result.effective)) {
        const change =
          setting === 'replica_count'
            ? trans.__('Replicas: %1', result.kernel.next_replica_count)
            : trans.__('GPUs per cell: %1', result.kernel.gpus_per_cell);
        const message =
          when === 'next-cell'
            ? trans.__('%1, %2, from the next cell.', notebook, change)
            : trans.__('%1, %2, as soon as hosts allow.', notebook, change);
        Notification.info(message, { autoClose: SHOWN_MS });
      }
    },
    refused: (notebook, error) => {
      const reason =
        error instanceof Refused && error.message
          ? `${error.message} ${error.hint}`.trim()
          : trans.__('The server did not take the new settings.');
      Notification.error(trans.__('%1: %2', notebook, reason), {
        autoClose: false
      });
    }
  };
}
