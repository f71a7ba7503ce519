/** Keeps the latest cluster: one REST snapshot, Jupyter events that say it changed, a poll besides. */
import type { Event, ServerConnection } from '@jupyterlab/services';
import { Poll, Throttler } from '@lumino/polling';
import { ISignal, Signal } from '@lumino/signaling';

import { ClusterState, INITIAL, Message, reduce } from './reduce';
import { Refused, request, Unreachable } from './request';
import { IClusterModel } from './tokens';
import {
  decodeCluster,
  decodeHost,
  decodeKernel,
  decodeSettingsResult,
  decodeTimeline,
  decodeUsage,
  Kernel,
  SettingsPatch,
  SettingsResult,
  Timeline,
  Usage
} from './wire';

/** Between two polls while nothing runs; events make a change visible at once. */
const REST_MS = 5000;
/** Between two polls while something runs or waits, should an event get lost. */
const ACTIVE_MS = 2000;
/** Longest pause of the back-off while the server does not answer. */
const BACKOFF_MAX_MS = 30000;
/** A burst of events causes one request per this time. */
const EVENT_GAP_MS = 200;

export class ClusterModel implements IClusterModel {
  constructor(options: ClusterModel.IOptions) {
    this._settings = options.serverSettings;
    this._events = options.events;
    this._now = options.now ?? (() => Date.now() / 1000);
    this._poll = new Poll<void, Error>({
      auto: options.auto ?? true,
      factory: () => this._fetch(),
      frequency: { interval: REST_MS, backoff: true, max: BACKOFF_MAX_MS },
      name: 'notebookos-ext:cluster',
      standby: 'when-hidden'
    });
    this._refreshSoon = new Throttler(() => this._poll.refresh(), {
      limit: EVENT_GAP_MS,
      edge: 'trailing'
    });
    this._events?.stream.connect(this._onEvent, this);
  }

  get state(): ClusterState {
    return this._state;
  }

  get changed(): ISignal<IClusterModel, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  kernel(id: string | undefined): Kernel | undefined {
    return this._state.cluster?.kernels.find(kernel => kernel.id === id);
  }

  async refresh(): Promise<void> {
    await this._poll.refresh();
    await this._poll.tick;
  }

  async migrate(kernelId: string, replica: number): Promise<void> {
    await request(
      `kernels/${encodeURIComponent(kernelId)}/migration`,
      decodeKernel,
      this._settings,
      { method: 'POST', body: JSON.stringify({ replica }) }
    );
    void this._refreshSoon.invoke();
  }

  async continueUnprotected(kernelId: string): Promise<void> {
    await request(
      `kernels/${encodeURIComponent(kernelId)}/continue-unprotected`,
      decodeKernel,
      this._settings,
      { method: 'POST' }
    );
    void this._refreshSoon.invoke();
  }

  async preferExecutor(
    kernelId: string,
    replica: number | null
  ): Promise<void> {
    await request(
      `kernels/${encodeURIComponent(kernelId)}/executor`,
      decodeKernel,
      this._settings,
      replica === null
        ? { method: 'DELETE' }
        : { method: 'PUT', body: JSON.stringify({ replica }) }
    );
    void this._refreshSoon.invoke();
  }

  async addHost(): Promise<void> {
    await request('hosts', decodeCluster, this._settings, { method: 'POST' });
    void this._refreshSoon.invoke();
  }

  async drainHost(
    hostId: string,
    drain: boolean,
    release = false
  ): Promise<void> {
    await request(
      `hosts/${encodeURIComponent(hostId)}/drain`,
      decodeHost,
      this._settings,
      drain
        ? { method: 'PUT', body: JSON.stringify({ release }) }
        : { method: 'DELETE' }
    );
    void this._refreshSoon.invoke();
  }

  async usage(since: number): Promise<Usage> {
    return request(
      `usage?by=notebook&since=${since}`,
      decodeUsage,
      this._settings
    );
  }

  async timeline(since: number): Promise<Timeline> {
    return request(
      `usage/timeline?since=${since}`,
      decodeTimeline,
      this._settings
    );
  }

  async patchKernel(id: string, patch: SettingsPatch): Promise<SettingsResult> {
    const result = await request(
      `kernels/${encodeURIComponent(id)}`,
      decodeSettingsResult,
      this._settings,
      { method: 'PATCH', body: JSON.stringify(patch) }
    );
    void this._refreshSoon.invoke();
    return result;
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._events?.stream.disconnect(this._onEvent, this);
    this._refreshSoon.dispose();
    this._poll.dispose();
    Signal.clearData(this);
  }

  private _onEvent(_: Event.IManager, event: Event.Emission): void {
    if (event.schema_id.includes('notebookos')) {
      void this._refreshSoon.invoke();
    }
  }

  /** Rejects when the server does not answer as it should, so that the poll backs off. */
  private async _fetch(): Promise<void> {
    try {
      const cluster = await request('cluster', decodeCluster, this._settings);
      this._apply({ kind: 'snapshot', cluster });
    } catch (error) {
      this._apply(this._explain(error));
      throw error;
    }
  }

  private _explain(error: unknown): Message {
    if (error instanceof Unreachable) {
      return { kind: 'unreachable', at: this._now() };
    }
    if (error instanceof Refused) {
      const { status, message, hint } = error;
      return { kind: 'refused', status, message, hint };
    }
    const message = error instanceof Error ? error.message : String(error);
    return { kind: 'mismatch', message };
  }

  private _apply(message: Message): void {
    if (this.isDisposed) {
      return;
    }
    const next = reduce(this._state, message);
    if (next === this._state) {
      return;
    }
    this._state = next;
    const active =
      next.cluster !== null &&
      (next.cluster.waiting.length > 0 ||
        next.cluster.kernels.some(kernel => kernel.state !== 'idle'));
    const interval = active ? ACTIVE_MS : REST_MS;
    if (this._poll.frequency.interval !== interval) {
      this._poll.frequency = { ...this._poll.frequency, interval };
    }
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _events: Event.IManager | undefined;
  private readonly _now: () => number;
  private readonly _poll: Poll<void, Error>;
  private readonly _refreshSoon: Throttler;
  private readonly _settings: ServerConnection.ISettings;
  private _state = INITIAL;
}

export namespace ClusterModel {
  export interface IOptions {
    serverSettings: ServerConnection.ISettings;
    /** Jupyter's event stream; without it only the poll notices changes. */
    events?: Event.IManager;
    /** Whether to start asking at once; default yes. */
    auto?: boolean;
    /** The time in seconds since the Unix epoch. */
    now?: () => number;
  }
}
