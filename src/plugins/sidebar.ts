/** Shows the panel, on the side that the settings name. */
import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IClusterModel, IPreferences } from '../tokens';
import { CurrentNotebook } from '../widgets/currentNotebook';
import { Sidebar } from '../widgets/sidebar';

/** After the file browser and the running kernels. */
const RANK = 300;

export const sidebarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:sidebar',
  description: 'Shows hosts, GPUs, kernels and waiting cells in a panel.',
  autoStart: true,
  requires: [IClusterModel, IPreferences],
  optional: [INotebookTracker, ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IClusterModel,
    preferences: IPreferences,
    tracker: INotebookTracker | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    const notebook = tracker ? new CurrentNotebook(tracker, model) : undefined;
    const sidebar = new Sidebar({
      model,
      notebook,
      translator: translator ?? nullTranslator,
      onRefused: reason => {
        Notification.error(reason, { autoClose: false });
      }
    });
    restorer?.add(sidebar, sidebar.id);
    app.shell.add(sidebar, 'left', { rank: RANK, type: 'NotebookOS' });
    let side: string = 'left';
    const place = () => {
      const wanted = preferences.values.side;
      if (wanted !== side) {
        side = wanted;
        app.shell.add(sidebar, wanted, { rank: RANK, type: 'NotebookOS' });
      }
    };
    preferences.changed.connect(place);
    sidebar.disposed.connect(() => preferences.changed.disconnect(place));
    place();
  }
};
