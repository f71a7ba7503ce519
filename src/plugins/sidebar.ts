/** Shows the panel, on the side that the settings name. */
import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { KernelAPI } from '@jupyterlab/services';
import {
  ITranslator,
  nullTranslator,
  TranslationBundle
} from '@jupyterlab/translation';

import { told } from '../asking';
import type { IKernelActions } from '../components/KernelCard';
import { kernelTitle } from '../format';
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
      actions: kernelActions(
        app,
        model,
        (translator ?? nullTranslator).load('notebookos_ext')
      ),
      onRefused: refused
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

function refused(reason: string): void {
  Notification.error(reason, { autoClose: false });
}

function kernelActions(
  app: JupyterFrontEnd,
  model: IClusterModel,
  trans: TranslationBundle
): Omit<IKernelActions, 'move' | 'prefer'> {
  const { serverSettings } = app.serviceManager;
  return {
    open: kernel =>
      void app.commands.execute('docmanager:open', {
        path: kernel.notebook_path
      }),
    interrupt: id =>
      void told(KernelAPI.interruptKernel(id, serverSettings), trans, refused),
    restart: async kernel => {
      const answer = await showDialog({
        title: trans.__('Restart %1?', kernelTitle(kernel, trans)),
        body: trans.__('All of its variables are lost, on every replica.'),
        buttons: [
          Dialog.cancelButton({ label: trans.__('Cancel') }),
          Dialog.warnButton({ label: trans.__('Restart') })
        ]
      });
      if (answer.button.accept) {
        await told(
          KernelAPI.restartKernel(kernel.id, serverSettings),
          trans,
          refused
        );
      }
    },
    goOn: async kernel => {
      const answer = await showDialog({
        title: trans.__(
          'Let %1 go on unprotected?',
          kernelTitle(kernel, trans)
        ),
        body: trans.__(
          'What only its lost members know, such as its last cells, is given up for good, also when they come back.'
        ),
        buttons: [
          Dialog.cancelButton({ label: trans.__('Cancel') }),
          Dialog.warnButton({ label: trans.__('Go on') })
        ]
      });
      if (answer.button.accept) {
        await told(model.continueUnprotected(kernel.id), trans, refused);
      }
    }
  };
}
