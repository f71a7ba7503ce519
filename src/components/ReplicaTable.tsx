/** The replicas of one kernel. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { replicaState } from '../format';
import type { Replica } from '../wire';

export interface IReplicaTableProps {
  title: string;
  replicas: Replica[];
  trans: TranslationBundle;
}

export function ReplicaTable(props: IReplicaTableProps): JSX.Element {
  const { title, replicas, trans } = props;
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
            </th>
            <td>{replica.host_id}</td>
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
          </tr>
        ))}
      </tbody>
    </table>
  );
}
