/** The latest cells of one kernel: who ran each, on which GPU, how long it waited and ran. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import {
  cellDevices,
  cellState,
  formatDuration,
  replicaNumber
} from '../format';
import type { Cell } from '../wire';

export interface ICellTableProps {
  title: string;
  cells: Cell[];
  trans: TranslationBundle;
}

/** Older ones are behind the table's own scroll bar. */
export function CellTable(props: ICellTableProps): JSX.Element {
  const { title, cells, trans } = props;
  return (
    <div
      className="jp-NotebookOS-scroll"
      tabIndex={0}
      role="group"
      aria-label={trans.__('Latest cells of %1', title)}
    >
      <table className="jp-NotebookOS-table">
        <caption className="jp-NotebookOS-srOnly">
          {trans.__('Latest cells of %1, newest first', title)}
        </caption>
        <thead>
          <tr>
            <th scope="col">{trans.__('Cell')}</th>
            <th scope="col">{trans.__('Ran on')}</th>
            <th scope="col">{trans.__('Waited')}</th>
            <th scope="col">{trans.__('Ran')}</th>
          </tr>
        </thead>
        <tbody>
          {cells.map(cell => (
            <CellRow key={cell.cell_id} cell={cell} trans={trans} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function CellRow(props: { cell: Cell; trans: TranslationBundle }): JSX.Element {
  const { cell, trans } = props;
  return (
    <tr data-cell={cell.cell_id} data-state={cell.state}>
      <th scope="row" title={cell.gpus_reason}>
        <code>{cell.code || '…'}</code>
        {cell.state !== 'done' && (
          <span className={`jp-NotebookOS-tag jp-mod-${cell.state}`}>
            {cellState(cell.state, trans)}
          </span>
        )}
      </th>
      <td>
        {place(cell, trans)}
        <span className="jp-NotebookOS-detail">{cellDevices(cell, trans)}</span>
      </td>
      <td className="jp-NotebookOS-nowrap">
        {cell.waited_ms === null ? '–' : formatDuration(cell.waited_ms)}
      </td>
      <td className="jp-NotebookOS-nowrap">
        {cell.ran_ms === null ? '–' : formatDuration(cell.ran_ms)}
      </td>
    </tr>
  );
}

function place(cell: Cell, trans: TranslationBundle): string {
  if (cell.replica_id === null) {
    return '–';
  }
  const replica = replicaNumber(cell.replica_id);
  return cell.host_id === null
    ? trans.__('replica %1', replica)
    : trans.__('replica %1, %2', replica, cell.host_id);
}
