/** Command ids and what they do. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { InputDialog, Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { refreshIcon } from '@jupyterlab/ui-components';

import { told } from './asking';
import { replicasIcon } from './icons';
import { GPUS_MAX, REPLICA_COUNTS } from './notebookSettings';
import type { IClusterModel } from './tokens';
import type { Kernel } from './wire';
import type { CurrentNotebook } from './widgets/currentNotebook';
import { Sidebar, SIDEBAR_ID } from './widgets/sidebar';

export namespace CommandIDs {
  export const show = 'notebookos-ext:show';
  export const refresh = 'notebookos-ext:refresh';
  export const usage = 'notebookos-ext:show-savings';
  export const replicas = 'notebookos-ext:choose-replica-count';
  export const gpus = 'notebookos-ext:choose-gpus-per-cell';
  export const migrate = 'notebookos-ext:migrate-replica';
  export const executor = 'notebookos-ext:choose-executor';
  export const drain = 'notebookos-ext:drain-host';
  export const use = 'notebookos-ext:use-host';
  export const addHost = 'notebookos-ext:add-host';
  export const removeHost = 'notebookos-ext:remove-host';
}

/** In the order of the palette. */
export const ALL_COMMANDS = Object.values(CommandIDs);

const NO_ARGUMENTS = { type: 'object', properties: {} } as const;
const HOST_ARGUMENT = {
  type: 'object',
  properties: { host: { type: 'string', description: 'Id of the host.' } }
} as const;
const REPLICA_ARGUMENT = {
  type: 'object',
  properties: {
    replica: { type: 'number', description: 'Number of the replica.' }
  }
} as const;

export function addCommands(
  app: JupyterFrontEnd,
  model: IClusterModel,
  notebook: CurrentNotebook | undefined,
  trans: TranslationBundle
): void {
  addViews(app, model, trans);
  addHostCommands(app, model, trans);
  if (notebook) {
    addNotebookCommands(app, model, notebook, trans);
  }
  const changed = () => app.commands.notifyCommandChanged();
  model.changed.connect(changed);
  notebook?.changed.connect(changed);
}

function refused(reason: string): void {
  Notification.error(reason, { autoClose: false });
}

function addViews(
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
  app.commands.addCommand(CommandIDs.usage, {
    label: trans.__('Show GPU Savings'),
    caption: trans.__(
      'Show what cells held of the GPUs, and what reserving them would have'
    ),
    describedBy: { args: NO_ARGUMENTS },
    execute: () => {
      app.shell.activateById(SIDEBAR_ID);
      for (const side of ['left', 'right']) {
        for (const widget of app.shell.widgets(side)) {
          if (widget instanceof Sidebar) {
            widget.showSavings();
          }
        }
      }
    }
  });
}

/** What moves whole hosts. */
function addHostCommands(
  app: JupyterFrontEnd,
  model: IClusterModel,
  trans: TranslationBundle
): void {
  const hosts = (draining: boolean) =>
    (model.state.cluster?.hosts ?? [])
      .filter(host => host.state === 'ready' && host.draining === draining)
      .map(host => host.id);
  const command = (
    id: string,
    label: string,
    title: string,
    drain: boolean,
    release = false
  ) =>
    app.commands.addCommand(id, {
      label,
      describedBy: { args: HOST_ARGUMENT },
      isEnabled: () => hosts(!drain).length > 0,
      execute: async args => {
        const host =
          (args.host as string | undefined) ??
          (await choose(title, hosts(!drain), trans));
        if (host) {
          await told(model.drainHost(host, drain, release), trans, refused);
        }
      }
    });
  app.commands.addCommand(CommandIDs.addHost, {
    label: trans.__('Add a Host'),
    describedBy: { args: NO_ARGUMENTS },
    isEnabled: () => {
      const { cluster } = model.state;
      return cluster !== null && cluster.hosts.length < cluster.max_hosts;
    },
    execute: () => told(model.addHost(), trans, refused)
  });
  command(
    CommandIDs.removeHost,
    trans.__('Remove Host…'),
    trans.__('Which host is to be emptied and removed?'),
    true,
    true
  );
  command(
    CommandIDs.drain,
    trans.__('Drain Host…'),
    trans.__('Which host is to be emptied?'),
    true
  );
  command(
    CommandIDs.use,
    trans.__('Use Drained Host Again…'),
    trans.__('Which host is to be used again?'),
    false
  );
}

/** What concerns the notebook in front. */
function addNotebookCommands(
  app: JupyterFrontEnd,
  model: IClusterModel,
  notebook: CurrentNotebook,
  trans: TranslationBundle
): void {
  app.commands.addCommand(CommandIDs.replicas, {
    label: trans.__('Choose Replica Count of This Notebook…'),
    describedBy: { args: NO_ARGUMENTS },
    isEnabled: () => notebook.name !== null,
    execute: async () => {
      const present = String(notebook.settings.replica_count);
      const count = await choose(
        trans.__('Replicas of %1', notebook.name ?? ''),
        REPLICA_COUNTS.map(String),
        trans,
        present
      );
      if (count && count !== present) {
        notebook.change({ replica_count: Number(count) });
      }
    }
  });
  app.commands.addCommand(CommandIDs.gpus, {
    label: trans.__('Choose GPUs per Cell of This Notebook…'),
    describedBy: { args: NO_ARGUMENTS },
    isEnabled: () => notebook.name !== null,
    execute: async () => {
      const { value } = await InputDialog.getNumber({
        title: trans.__('GPUs per cell of %1', notebook.name ?? ''),
        value: notebook.settings.gpus_per_cell
      });
      if (value === null || value === notebook.settings.gpus_per_cell) {
        return;
      }
      if (Number.isInteger(value) && value >= 0 && value <= GPUS_MAX) {
        notebook.change({ gpus_per_cell: value });
      } else {
        refused(
          trans.__('GPUs per cell are a whole number up to %1.', GPUS_MAX)
        );
      }
    }
  });
  app.commands.addCommand(CommandIDs.executor, {
    label: trans.__('Choose Who Runs the Next Cell of This Notebook…'),
    describedBy: { args: REPLICA_ARGUMENT },
    isEnabled: () => (notebook.kernel?.replicas.length ?? 0) > 1,
    execute: async args => {
      const { kernel } = notebook;
      if (!kernel) {
        return;
      }
      const number =
        (args.replica as number | undefined) ??
        (await chooseReplica(
          kernel,
          trans.__('Which replica is to run the next cell, if it can?'),
          trans
        ));
      if (typeof number === 'number') {
        await told(model.preferExecutor(kernel.id, number), trans, refused);
      }
    }
  });
  app.commands.addCommand(CommandIDs.migrate, {
    label: trans.__('Migrate a Replica of This Notebook…'),
    describedBy: { args: REPLICA_ARGUMENT },
    isEnabled: () =>
      Boolean(notebook.kernel?.replicas.length) &&
      notebook.kernel?.migration === null,
    execute: async args => {
      const { kernel } = notebook;
      if (!kernel) {
        return;
      }
      const number =
        args.replica ??
        (await chooseReplica(
          kernel,
          trans.__('Which replica is to move?'),
          trans
        ));
      if (typeof number === 'number') {
        await told(model.migrate(kernel.id, number), trans, refused);
      }
    }
  });
}

/** Asks for a replica; gives its number. */
async function chooseReplica(
  kernel: Kernel,
  title: string,
  trans: TranslationBundle
): Promise<number | undefined> {
  const choices = kernel.replicas.map(replica =>
    trans.__('Replica %1 on %2', replica.number, replica.host_id)
  );
  const chosen = await choose(title, choices, trans);
  return kernel.replicas[choices.indexOf(chosen ?? '')]?.number;
}

/** Asks for one of a few; undefined when the user goes back. */
async function choose(
  title: string,
  items: string[],
  trans: TranslationBundle,
  current?: string
): Promise<string | undefined> {
  const { value } = await InputDialog.getItem({
    title,
    label: trans.__('Choose one:'),
    items,
    current
  });
  return value ?? undefined;
}
