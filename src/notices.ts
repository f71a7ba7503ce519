/**
 * Which changes of the cluster the user should be told of, each once. Pure: what was said is in
 * the tracker, the time is that of the snapshots.
 */
import type { Cluster, Kernel, Store } from './wire';

/** What a notice is about; each kind can be switched off. */
export type NoticeKind =
  | 'executor-lost'
  | 'kernel-held'
  | 'durability-behind'
  | 'store-unreachable'
  | 'server-warning';

export type Notice = {
  readonly kind: NoticeKind;
  /** The kernel that it is about; none when it is about the whole cluster. */
  readonly kernel?: Kernel;
  /** The lost executor's host, the names that hold or are behind, or a sentence of the server. */
  readonly detail: string;
};

/** Names that are not durable for this long are worth a word; shorter is the usual course. */
export const BEHIND_SECONDS = 30;

export class NoticeTracker {
  /**
   * What is new since the last snapshot. The first one tells warnings and a store that
   * fails alone: the rest was so before anybody looked.
   */
  next(cluster: Cluster): Notice[] {
    const notices: Notice[] = [];
    for (const kernel of cluster.kernels) {
      const known = this._known?.kernels.find(k => k.id === kernel.id);
      if (known) {
        notices.push(...lost(known, kernel), ...held(known, kernel));
      }
      notices.push(...this._behind(kernel, cluster.at));
    }
    notices.push(...this._storeFails(cluster.store));
    for (const warning of cluster.warnings) {
      const key = `${warning.kernel_id ?? ''} ${warning.message}`;
      // What the store says of itself is told as the store's.
      const twice =
        !cluster.store.works && warning.message.includes(cluster.store.error);
      if (!this._said.has(key) && !twice) {
        this._said.add(key);
        const kernel = cluster.kernels.find(k => k.id === warning.kernel_id);
        notices.push({
          kind: 'server-warning',
          kernel,
          detail: warning.message
        });
      }
    }
    const alive = new Set(cluster.kernels.map(kernel => kernel.id));
    for (const id of this._since.keys()) {
      if (!alive.has(id)) {
        this._since.delete(id);
      }
    }
    this._known = cluster;
    return notices;
  }

  /** Once for each time that a kernel's names are behind, however long that lasts. */
  private _behind(kernel: Kernel, at: number): Notice[] {
    if (!kernel.not_durable.length) {
      this._since.delete(kernel.id);
      return [];
    }
    const entry = this._since.get(kernel.id) ?? { since: at, said: false };
    this._since.set(kernel.id, entry);
    if (entry.said || at - entry.since < BEHIND_SECONDS) {
      return [];
    }
    entry.said = true;
    const detail = kernel.not_durable.join(', ');
    return [{ kind: 'durability-behind', kernel, detail }];
  }

  /** Once for each time that the store fails, however long that lasts. */
  private _storeFails(store: Store): Notice[] {
    const news = !store.works && this._storeWorked;
    this._storeWorked = store.works;
    return news ? [{ kind: 'store-unreachable', detail: store.error }] : [];
  }

  private _storeWorked = true;
  private _known: Cluster | null = null;
  private readonly _said = new Set<string>();
  private readonly _since = new Map<string, { since: number; said: boolean }>();
}

/** The executor's process or host ended; its successor is another one or starts again. */
function lost(before: Kernel, now: Kernel): Notice[] {
  const executor = before.replicas.find(replica => replica.executor);
  if (!executor || executor.state === 'lost' || now.epoch !== before.epoch) {
    return [];
  }
  const same = now.replicas.find(replica => replica.id === executor.id);
  return same?.state === 'lost'
    ? [{ kind: 'executor-lost', kernel: now, detail: executor.host_id }]
    : [];
}

function held(before: Kernel, now: Kernel): Notice[] {
  const known = new Set(before.held.map(name => name.name));
  const names = now.held.filter(name => !known.has(name.name));
  return names.length
    ? [
        {
          kind: 'kernel-held',
          kernel: now,
          detail: names.map(name => name.name).join(', ')
        }
      ]
    : [];
}
