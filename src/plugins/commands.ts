/** Registers the commands, and lists them in the palette. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addCommands, ALL_COMMANDS } from '../commands';
import { IClusterModel } from '../tokens';
import { CurrentNotebook } from '../widgets/currentNotebook';

export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:commands',
  description: 'Adds the commands of NotebookOS.',
  autoStart: true,
  requires: [IClusterModel],
  optional: [INotebookTracker, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IClusterModel,
    tracker: INotebookTracker | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    const notebook = tracker ? new CurrentNotebook(tracker, model) : undefined;
    addCommands(app, model, notebook, trans);
    for (const command of ALL_COMMANDS) {
      if (app.commands.hasCommand(command)) {
        palette?.addItem({ command, category: trans.__('NotebookOS') });
      }
    }
  }
};
