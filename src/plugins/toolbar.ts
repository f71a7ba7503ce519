/** Puts the indicator and the quick chooser into each notebook's toolbar. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { IClusterModel } from '../tokens';
import { Chooser } from '../widgets/chooser';
import { Indicator } from '../widgets/indicator';

/** The items' names in `schema/toolbar.json`. */
const INDICATOR = 'notebookos-executor';
const CHOOSER = 'notebookos-settings';

export const toolbarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:toolbar',
  description:
    "Shows the executor, GPUs per cell and replicas in the notebook's toolbar.",
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
      INDICATOR,
      panel =>
        new Indicator(panel.sessionContext, model, trans, () => {
          void app.commands.execute(CommandIDs.show);
        })
    );
    registry.addFactory<NotebookPanel>(
      'Notebook',
      CHOOSER,
      panel => new Chooser(panel, model, trans)
    );
  }
};
