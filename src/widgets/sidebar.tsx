/** The panel: this notebook, what waits, hosts with their GPUs, kernels. */
import type { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { told } from '../asking';
import { Banner } from '../components/Banner';
import { HostCard } from '../components/HostCard';
import { IKernelActions, KernelCard } from '../components/KernelCard';
import { Savings } from '../components/Savings';
import { Section } from '../components/Section';
import { SettingsForm } from '../components/SettingsForm';
import { WaitingList } from '../components/WaitingList';
import { Warnings } from '../components/Warnings';
import { formatTime } from '../format';
import { replicasIcon } from '../icons';
import type { IClusterModel } from '../tokens';
import type { Cluster, Host, Kernel, Replica, Timeline, Usage } from '../wire';
import type { CurrentNotebook } from './currentNotebook';

export const SIDEBAR_ID = 'notebookos-ext-sidebar';

export class Sidebar extends ReactWidget {
  constructor(options: Sidebar.IOptions) {
    super();
    this._model = options.model;
    this._notebook = options.notebook;
    this._trans = options.translator.load('notebookos_ext');
    this._onRefused = options.onRefused;
    this._actions = {
      ...options.actions,
      move: this._move,
      prefer: this._prefer
    };
    this.id = SIDEBAR_ID;
    this.addClass('jp-NotebookOS');
    this.title.icon = replicasIcon;
    this.title.caption = this._trans.__('NotebookOS: GPUs, kernels, replicas');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', this._trans.__('NotebookOS'));
    // The panel scrolls, so it must be reachable by keyboard even while it holds no control.
    this.node.tabIndex = 0;
    this._model.changed.connect(this._onChanged, this);
    this._notebook?.changed.connect(this._onChanged, this);
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    Signal.clearData(this);
    super.dispose();
  }

  /** Unfold the savings and bring them into sight. */
  showSavings(): void {
    const section = this.node.querySelector<HTMLDetailsElement>(
      'details[data-section=savings]'
    );
    if (section) {
      section.open = true;
      section.scrollIntoView();
    }
  }

  protected override render(): React.ReactElement {
    const { connection, cluster } = this._model.state;
    return (
      <>
        <Banner connection={connection} trans={this._trans} />
        {cluster && <Overview cluster={cluster} trans={this._trans} />}
        {this._notebook && cluster && (
          <Section title={this._trans.__('This notebook')}>
            {this._settingsForm(this._notebook)}
          </Section>
        )}
        {cluster && (
          <ClusterSections
            cluster={cluster}
            actions={this._actions}
            onDrain={this._drain}
            onAddHost={this._addHost}
            trans={this._trans}
          />
        )}
        {cluster && (
          <Section name="savings" title={this._trans.__('Savings')} folded>
            <Savings load={this._load} now={this._now} trans={this._trans} />
          </Section>
        )}
      </>
    );
  }

  private _settingsForm(notebook: CurrentNotebook): React.ReactElement {
    return (
      <SettingsForm
        notebook={notebook.name}
        settings={notebook.settings}
        replicated={notebook.kernel !== undefined}
        gpuTypes={gpuTypes(this._model.state.cluster)}
        onChange={change => notebook.change(change)}
        trans={this._trans}
      />
    );
  }

  private _onChanged(): void {
    this.update();
  }

  private readonly _move = (kernel: Kernel, replica: Replica): void => {
    void this._tell(this._model.migrate(kernel.id, replica.number));
  };

  private readonly _prefer = (
    kernel: Kernel,
    replica: Replica | null
  ): void => {
    void this._tell(
      this._model.preferExecutor(kernel.id, replica?.number ?? null)
    );
  };

  private readonly _addHost = (): void => {
    void this._tell(this._model.addHost());
  };

  private readonly _drain = (
    host: Host,
    drain: boolean,
    release = false
  ): void => {
    void this._tell(this._model.drainHost(host.id, drain, release));
  };

  private _tell(asked: Promise<void>): Promise<void> {
    return told(asked, this._trans, this._onRefused);
  }

  /** The same functions for each drawing: with others the account would be asked for again. */
  private readonly _load = (since: number): Promise<[Usage, Timeline]> =>
    Promise.all([this._model.usage(since), this._model.timeline(since)]);
  private readonly _now = (): number => Date.now() / 1000;
  private readonly _actions: IKernelActions;
  private readonly _model: IClusterModel;
  private readonly _notebook: CurrentNotebook | undefined;
  private readonly _onRefused: ((reason: string) => void) | undefined;
  private readonly _trans: TranslationBundle;
}

export namespace Sidebar {
  export interface IOptions {
    model: IClusterModel;
    /** The notebook in front; without notebooks there are no settings to show. */
    notebook?: CurrentNotebook;
    translator: ITranslator;
    /** What its buttons do with kernels, besides what the model does. */
    actions: Omit<IKernelActions, 'move' | 'prefer'>;
    /** Tells the user why something that was asked for is not done. */
    onRefused?: (reason: string) => void;
  }
}

/** Types of GPUs that the hosts have, each once. */
function gpuTypes(cluster: Cluster | null): string[] {
  const types = (cluster?.hosts ?? []).map(host => host.gpu_type);
  return [...new Set(types.filter(Boolean))].sort();
}

interface IClusterProps {
  cluster: Cluster;
  trans: TranslationBundle;
}

/** What the whole cluster is, and what the user should know of it. */
function Overview({ cluster, trans }: IClusterProps): JSX.Element {
  return (
    <>
      <p className="jp-NotebookOS-detail">
        {cluster.simulated
          ? trans.__('Simulated GPUs · %1 policy', cluster.policy)
          : trans.__('%1 policy', cluster.policy)}
      </p>
      {!cluster.durable && (
        <p className="jp-NotebookOS-notice jp-mod-warn">
          {trans.__(
            'Not durable: raftos keeps the logs and may lose what it has acknowledged.'
          )}
        </p>
      )}
      {!cluster.store.works && (
        <p className="jp-NotebookOS-notice jp-mod-warn">
          {trans.__(
            'Since %1 large variables are not kept by other hosts: %2',
            formatTime(cluster.store.since ?? cluster.at),
            cluster.store.error
          )}
        </p>
      )}
      <Warnings
        warnings={cluster.warnings}
        kernels={cluster.kernels}
        trans={trans}
      />
    </>
  );
}

interface ISectionsProps extends IClusterProps {
  actions: IKernelActions;
  onDrain: (host: Host, drain: boolean, release?: boolean) => void;
  onAddHost: () => void;
}

/** Short sections first, so that a long list hides none. */
function ClusterSections(props: ISectionsProps): JSX.Element {
  const { cluster, actions, onDrain, onAddHost, trans } = props;
  const { hosts, kernels, waiting, at } = cluster;
  return (
    <>
      <Section title={trans.__('Waiting (%1)', waiting.length)}>
        <WaitingList
          waiting={waiting}
          at={at}
          onCancel={actions.interrupt}
          trans={trans}
        />
      </Section>
      <Section title={trans.__('Hosts (%1)', hosts.length)}>
        {!hosts.length && (
          <p className="jp-NotebookOS-empty">
            {trans.__('No host has joined yet.')}
          </p>
        )}
        {hosts.map(host => (
          <HostCard
            key={host.id}
            host={host}
            kernels={kernels}
            onDrain={onDrain}
            trans={trans}
          />
        ))}
        <p className="jp-NotebookOS-buttons">
          <button
            className="jp-NotebookOS-button"
            disabled={hosts.length >= cluster.max_hosts}
            title={trans.__('The cluster may have %1 hosts', cluster.max_hosts)}
            onClick={onAddHost}
          >
            {trans.__('Add a host')}
          </button>
        </p>
      </Section>
      <Section title={trans.__('Kernels (%1)', kernels.length)}>
        {!kernels.length && (
          <p className="jp-NotebookOS-empty">
            {trans.__(
              'No kernel runs. Open a notebook with "Python 3 (NotebookOS)".'
            )}
          </p>
        )}
        {kernels.map(kernel => (
          <KernelCard
            key={kernel.id}
            kernel={kernel}
            actions={actions}
            trans={trans}
          />
        ))}
      </Section>
    </>
  );
}
