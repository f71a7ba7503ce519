/** Shows the panel, on the side that the settings name. */
import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IClusterModel } from '../tokens';
import { CurrentNotebook } from '../widgets/currentNotebook';
import { Sidebar } from '../widgets/sidebar';

const ID = 'notebookos-ext:sidebar';

/** After the file browser and the running kernels. */
const RANK = 300;

export const sidebarPlugin: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'Shows hosts, GPUs, kernels and waiting cells in a panel.',
  autoStart: true,
  requires: [IClusterModel],
  optional: [INotebookTracker, ISettingRegistry, ILayoutRestorer, ITranslator],
  activate: async (
    app: JupyterFrontEnd,
    model: IClusterModel,
    tracker: INotebookTracker | null,
    settingRegistry: ISettingRegistry | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): Promise<void> => {
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
    const settings = await settingRegistry?.load(ID).catch(() => undefined);
    if (!settings) {
      return;
    }
    let side = 'left';
    const place = () => {
      const wanted = settings.get('side').composite as string;
      if (wanted !== side) {
        side = wanted;
        app.shell.add(sidebar, wanted, { rank: RANK, type: 'NotebookOS' });
      }
    };
    settings.changed.connect(place);
    sidebar.disposed.connect(() => settings.changed.disconnect(place));
    place();
  }
};
