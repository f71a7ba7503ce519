/** Registers the commands, and lists them in the palette. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addCommands, CommandIDs } from '../commands';
import { IClusterModel } from '../tokens';

export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:commands',
  description: 'Adds the commands of NotebookOS.',
  autoStart: true,
  requires: [IClusterModel],
  optional: [ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IClusterModel,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    addCommands(app, model, trans);
    for (const command of [CommandIDs.show, CommandIDs.refresh]) {
      palette?.addItem({ command, category: trans.__('NotebookOS') });
    }
  }
};
