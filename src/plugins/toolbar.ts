/** Puts the indicator into each notebook's toolbar. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { IClusterModel } from '../tokens';
import { Indicator } from '../widgets/indicator';

/** The item's name in `schema/toolbar.json`. */
const NAME = 'notebookos-executor';

export const toolbarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:toolbar',
  description: "Shows the executor and its state in the notebook's toolbar.",
  autoStart: true,
  requires: [IClusterModel, IToolbarWidgetRegistry],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IClusterModel,
    registry: IToolbarWidgetRegistry,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    registry.addFactory<NotebookPanel>(
      'Notebook',
      NAME,
      panel =>
        new Indicator(panel.sessionContext, model, trans, () => {
          void app.commands.execute(CommandIDs.show);
        })
    );
  }
};
