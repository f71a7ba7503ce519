/** The queue: which cells wait, at which place, and why. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatDuration, kernelTitle } from '../format';
import type { Waiting } from '../wire';

export interface IWaitingListProps {
  waiting: Waiting[];
  /** The server's time of the snapshot, from which the wait is counted. */
  at: number;
  /** Interrupts the kernel, so that its waiting cell ends. */
  onCancel: (kernelId: string) => void;
  trans: TranslationBundle;
}

export function WaitingList(props: IWaitingListProps): JSX.Element {
  const { waiting, at, onCancel, trans } = props;
  if (!waiting.length) {
    return (
      <p className="jp-NotebookOS-empty">{trans.__('No cell is waiting.')}</p>
    );
  }
  return (
    <table className="jp-NotebookOS-table">
      <caption className="jp-NotebookOS-srOnly">
        {trans.__('Waiting cells')}
      </caption>
      <thead>
        <tr>
          <th scope="col">{trans.__('Place')}</th>
          <th scope="col">{trans.__('Notebook')}</th>
          <th scope="col">{trans.__('GPUs')}</th>
          <th scope="col">{trans.__('Waits for')}</th>
          <th scope="col">
            <span className="jp-NotebookOS-srOnly">{trans.__('Actions')}</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {waiting.map(item => (
          <tr key={item.cell_id} data-waiting={item.cell_id}>
            <td>{item.position}</td>
            <th scope="row">{titleOf(item, trans)}</th>
            <td>{item.gpus}</td>
            <td>
              {item.reason}
              <span className="jp-NotebookOS-detail">
                {trans.__('for %1', formatDuration((at - item.since) * 1000))}
                {item.estimate_ms !== null &&
                  ` · ${trans.__('about %1 more', formatDuration(item.estimate_ms))}`}
              </span>
            </td>
            <td>
              <button
                className="jp-NotebookOS-button"
                aria-label={trans.__(
                  'Cancel the waiting cell of %1',
                  titleOf(item, trans)
                )}
                onClick={() => onCancel(item.kernel_id)}
              >
                {trans.__('Cancel')}
              </button>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function titleOf(item: Waiting, trans: TranslationBundle): string {
  return kernelTitle(
    { id: item.kernel_id, notebook_path: item.notebook_path },
    trans
  );
}
