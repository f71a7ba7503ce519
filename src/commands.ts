/** Command ids and what they do. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { TranslationBundle } from '@jupyterlab/translation';
import { refreshIcon } from '@jupyterlab/ui-components';

import { replicasIcon } from './icons';
import type { IClusterModel } from './tokens';
import { SIDEBAR_ID } from './widgets/sidebar';

export namespace CommandIDs {
  export const show = 'notebookos-ext:show';
  export const refresh = 'notebookos-ext:refresh';
}

const NO_ARGUMENTS = { type: 'object', properties: {} } as const;

export function addCommands(
  app: JupyterFrontEnd,
  model: IClusterModel,
  trans: TranslationBundle
): void {
  app.commands.addCommand(CommandIDs.show, {
    label: trans.__('Show GPUs, Kernels and Replicas'),
    caption: trans.__('Show the NotebookOS panel'),
    icon: replicasIcon,
    describedBy: { args: NO_ARGUMENTS },
    execute: () => app.shell.activateById(SIDEBAR_ID)
  });
  app.commands.addCommand(CommandIDs.refresh, {
    label: trans.__('Refresh the NotebookOS Panel'),
    caption: trans.__('Ask the server for the state of the cluster now'),
    icon: refreshIcon,
    describedBy: { args: NO_ARGUMENTS },
    execute: () => model.refresh()
  });
}
