/** Lists replicated kernels in the panel of running sessions, with executor and state. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IRunningSessionManagers, IRunningSessions } from '@jupyterlab/running';
import { KernelAPI } from '@jupyterlab/services';
import {
  ITranslator,
  nullTranslator,
  TranslationBundle
} from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { CommandIDs } from '../commands';
import { kernelTitle } from '../format';
import { replicasIcon } from '../icons';
import { IClusterModel } from '../tokens';
import { describe } from '../widgets/indicator';
import type { Kernel } from '../wire';

export const runningPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:running',
  description: 'Lists replicated kernels among the running sessions.',
  autoStart: true,
  requires: [IClusterModel],
  optional: [IRunningSessionManagers, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IClusterModel,
    managers: IRunningSessionManagers | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    managers?.add(runningKernels(app, model, trans));
  }
};

/** What the panel of running sessions asks. */
export function runningKernels(
  app: JupyterFrontEnd,
  model: IClusterModel,
  trans: TranslationBundle
): IRunningSessions.IManager {
  const shutdown = async (kernel: Kernel) => {
    await KernelAPI.shutdownKernel(
      kernel.id,
      app.serviceManager.serverSettings
    );
    await model.refresh();
  };
  const kernels = () => model.state.cluster?.kernels ?? [];
  const changed = new Signal<unknown, void>({});
  // The panel is drawn anew each time: only when what it shows is different.
  let shown = '';
  model.changed.connect(() => {
    const now = kernels()
      .map(kernel => `${kernel.id} ${words(kernel, model, trans)}`)
      .join('\n');
    if (now !== shown) {
      shown = now;
      changed.emit();
    }
  });
  return {
    name: trans.__('Replicated Kernels'),
    running: () =>
      kernels().map(kernel => ({
        context: kernel.id,
        icon: () => replicasIcon,
        label: () => kernelTitle(kernel, trans),
        labelTitle: () => kernel.notebook_path || kernel.id,
        detail: () => words(kernel, model, trans),
        open: () =>
          void (kernel.notebook_path
            ? app.commands.execute('docmanager:open', {
                path: kernel.notebook_path
              })
            : app.commands.execute(CommandIDs.show)),
        shutdown: () => void shutdown(kernel)
      })),
    shutdownAll: () => kernels().forEach(kernel => void shutdown(kernel)),
    refreshRunning: () => void model.refresh(),
    runningChanged: changed,
    shutdownLabel: trans.__('Shut Down Kernel'),
    shutdownAllLabel: trans.__('Shut Down All'),
    shutdownAllConfirmationText: () =>
      trans.__('Shut down all replicated kernels? Their variables are lost.')
  };
}

function words(
  kernel: Kernel,
  model: IClusterModel,
  trans: TranslationBundle
): string {
  const waiting = model.state.cluster?.waiting.find(
    item => item.kernel_id === kernel.id
  );
  return describe(kernel, waiting, trans);
}
