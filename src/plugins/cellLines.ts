/** Shows under each GPU cell where it ran, how long it waited and ran. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IClusterModel, IPreferences } from '../tokens';
import { CellLines } from '../widgets/cellLines';

export const cellLinesPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:cell-lines',
  description:
    'Shows under each GPU cell where it ran, how long it waited and ran.',
  autoStart: true,
  requires: [IClusterModel, IPreferences, INotebookTracker],
  optional: [ITranslator],
  activate: (
    _app: JupyterFrontEnd,
    model: IClusterModel,
    preferences: IPreferences,
    tracker: INotebookTracker,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    const follow = (panel: NotebookPanel) =>
      new CellLines(panel, model, preferences, trans);
    tracker.forEach(follow);
    tracker.widgetAdded.connect((_tracker, panel) => {
      follow(panel);
    });
  }
};
