/** The replicas of one kernel. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatBytes, replicaState } from '../format';
import type { Member, Replica } from '../wire';

export interface IReplicaTableProps {
  title: string;
  replicas: Replica[];
  /** Moves a replica to another host; without it none can be moved. */
  onMove?: (replica: Replica) => void;
  /** Number of the replica that is to run the next cell that it can. */
  preferred: number | null;
  /** Chooses it, or with null leaves it to the scheduler; without it there is no choice. */
  onPrefer?: (replica: Replica | null) => void;
  trans: TranslationBundle;
}

export function ReplicaTable(props: IReplicaTableProps): JSX.Element {
  const { title, replicas, onMove, preferred, onPrefer, trans } = props;
  return (
    <table className="jp-NotebookOS-table">
      <caption className="jp-NotebookOS-srOnly">
        {trans.__('Replicas of %1', title)}
      </caption>
      <thead>
        <tr>
          <th scope="col">{trans.__('Replica')}</th>
          <th scope="col">{trans.__('Host')}</th>
          <th scope="col">{trans.__('State')}</th>
          <th scope="col">{trans.__('Process')}</th>
          {(onMove || onPrefer) && (
            <th scope="col">
              <span className="jp-NotebookOS-srOnly">
                {trans.__('Actions')}
              </span>
            </th>
          )}
        </tr>
      </thead>
      <tbody>
        {replicas.map(replica => (
          <tr
            key={replica.id}
            data-replica={replica.number}
            data-state={replica.state}
            className={replica.executor ? 'jp-mod-executor' : undefined}
          >
            <th scope="row">
              {replica.number}
              {replica.executor && (
                <span className="jp-NotebookOS-tag">
                  {trans.__('executor')}
                </span>
              )}
              {replica.number === preferred && (
                <span className="jp-NotebookOS-tag">{trans.__('next')}</span>
              )}
            </th>
            <td title={replica.member ? describe(replica.member, trans) : ''}>
              {replica.host_id}
              {replica.member && (
                <span className="jp-NotebookOS-detail">
                  {standing(replica.member, trans)}
                </span>
              )}
            </td>
            <td>
              {replicaState(replica.state, trans)}
              {replica.lag > 0 && (
                <span className="jp-NotebookOS-detail">
                  {trans._n(
                    '%1 log entry behind',
                    '%1 log entries behind',
                    replica.lag
                  )}
                </span>
              )}
            </td>
            <td>{replica.pid ?? '–'}</td>
            {(onMove || onPrefer) && (
              <td>
                {onPrefer && (
                  <button
                    className="jp-NotebookOS-button"
                    aria-pressed={replica.number === preferred}
                    aria-label={trans.__(
                      'Run the next cell of %1 on replica %2 if it can',
                      title,
                      replica.number
                    )}
                    onClick={() =>
                      onPrefer(replica.number === preferred ? null : replica)
                    }
                  >
                    {trans.__('Next')}
                  </button>
                )}{' '}
                {onMove && (
                  <button
                    className="jp-NotebookOS-button"
                    aria-label={trans.__(
                      'Move replica %1 of %2 to another host',
                      replica.number,
                      title
                    )}
                    onClick={() => onMove(replica)}
                  >
                    {trans.__('Move')}
                  </button>
                )}
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** What the host's member is in the kernel's Raft group, in a word or two. */
function standing(member: Member, trans: TranslationBundle): string {
  if (member.failure) {
    return trans.__('takes no part: %1', member.failure);
  }
  if (!member.votes) {
    return trans.__('learns the log');
  }
  return member.role === 'leader'
    ? trans.__('leads, term %1', member.term)
    : trans.__('follows, term %1', member.term);
}

/** The rest of it, for who looks closer. */
function describe(member: Member, trans: TranslationBundle): string {
  return [
    trans.__('Log entries: %1', member.last_index),
    trans.__('committed: %1', member.commit_index),
    trans.__('applied: %1', member.applied_index),
    trans.__('in the snapshot: %1', member.snapshot_index),
    trans.__('on disk: %1', formatBytes(member.log_bytes)),
    trans.__('changes of the leader: %1', member.leader_changes)
  ].join('\n');
}
