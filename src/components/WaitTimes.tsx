/** How long GPU cells waited, as a small chart that is a table to those who cannot see it. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatDuration } from '../format';

export interface IWaitTimesProps {
  /** Where the distribution is cut. */
  bounds_ms: number[];
  /** Cells up to each bound, and last those that waited longer. */
  counts: number[];
  trans: TranslationBundle;
}

export function WaitTimes(props: IWaitTimesProps): JSX.Element | null {
  const { bounds_ms, counts, trans } = props;
  const most = Math.max(...counts, 0);
  if (!most) {
    return null;
  }
  const label = (index: number) =>
    index < bounds_ms.length
      ? trans.__('up to %1', formatDuration(bounds_ms[index]))
      : trans.__('longer');
  return (
    <table className="jp-NotebookOS-table jp-NotebookOS-waitTimes">
      <caption>{trans.__('Waits of GPU cells')}</caption>
      <thead className="jp-NotebookOS-srOnly">
        <tr>
          <th scope="col">{trans.__('Waited')}</th>
          <th scope="col">{trans.__('Cells')}</th>
        </tr>
      </thead>
      <tbody>
        {counts.map((count, index) => (
          <tr key={index}>
            <th scope="row" className="jp-NotebookOS-nowrap">
              {label(index)}
            </th>
            <td className="jp-NotebookOS-wide">
              <span
                className="jp-NotebookOS-bar"
                style={{ width: `${(80 * count) / most}%` }}
                aria-hidden
              />
              {count}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
