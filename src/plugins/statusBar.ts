/** Puts GPUs, waiting cells and warnings into the status bar, where there is one. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { IClusterModel } from '../tokens';
import { StatusItem } from '../widgets/statusItem';

export const statusBarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:status-bar',
  description: 'Shows GPUs, waiting cells and warnings in the status bar.',
  autoStart: true,
  requires: [IClusterModel],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IClusterModel,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    statusBar?.registerStatusItem('notebookos-ext:status', {
      item: new StatusItem(model, trans, () => {
        void app.commands.execute(CommandIDs.show);
      }),
      align: 'left',
      rank: 90
    });
  }
};
