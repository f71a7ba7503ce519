/** Puts the panel into the launcher. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';

export const launcherPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:launcher',
  description: 'Adds the NotebookOS panel to the launcher.',
  autoStart: true,
  optional: [ILauncher, ITranslator],
  activate: (
    _app: JupyterFrontEnd,
    launcher: ILauncher | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    launcher?.add({
      command: CommandIDs.show,
      category: trans.__('Other'),
      rank: 10
    });
  }
};
