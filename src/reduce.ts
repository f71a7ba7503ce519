/** Pure: what the panel shows, from what it showed and what came in. */
import type { Cluster } from './wire';

/**
 * Where the front end stands with the server.
 *
 * `missing`: there is a Jupyter server, but our side of it is not enabled.
 * `disconnected`: no server answers; what was last known stays visible.
 * `failed`: our side answers with an error; the message is empty when it did not say which.
 * `mismatched`: it answers something that this front end does not understand.
 */
export type Connection =
  | { kind: 'loading' }
  | { kind: 'connected' }
  | { kind: 'missing' }
  | { kind: 'disconnected'; since: number }
  | { kind: 'failed'; status: number; message: string; hint: string }
  | { kind: 'mismatched'; message: string };

/** All that the views need. */
export type ClusterState = {
  readonly connection: Connection;
  /** The latest cluster that was seen; null before the first. */
  readonly cluster: Cluster | null;
};

/** What can come in; `at` is in seconds since the Unix epoch. */
export type Message =
  | { kind: 'snapshot'; cluster: Cluster }
  | { kind: 'unreachable'; at: number }
  | { kind: 'refused'; status: number; message: string; hint: string }
  | { kind: 'mismatch'; message: string };

export const INITIAL: ClusterState = {
  connection: { kind: 'loading' },
  cluster: null
};

/** The state after a message; the same object when nothing changes. */
export function reduce(state: ClusterState, message: Message): ClusterState {
  switch (message.kind) {
    case 'snapshot':
      return {
        connection: { kind: 'connected' },
        cluster: newer(state.cluster, message.cluster)
      };
    case 'unreachable':
      return state.connection.kind === 'disconnected'
        ? state
        : {
            ...state,
            connection: { kind: 'disconnected', since: message.at }
          };
    case 'refused':
      return message.status === 404
        ? { connection: { kind: 'missing' }, cluster: null }
        : {
            ...state,
            connection: {
              kind: 'failed',
              status: message.status,
              message: message.message,
              hint: message.hint
            }
          };
    case 'mismatch':
      return {
        ...state,
        connection: { kind: 'mismatched', message: message.message }
      };
  }
}

/** An answer that was overtaken on its way must not turn time back, unless the clock did. */
function newer(known: Cluster | null, incoming: Cluster): Cluster {
  const overtaken =
    known !== null && incoming.at < known.at && known.at - incoming.at < 60;
  return overtaken ? known : incoming;
}
