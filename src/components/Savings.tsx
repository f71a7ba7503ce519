/** What cells held of the GPUs, beside what reserving them for whole sessions would have held. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatDuration, formatGpuHours, formatShare } from '../format';
import type { Timeline, Usage } from '../wire';
import { GpuChart } from './GpuChart';
import { WaitTimes } from './WaitTimes';

const DAY_SECONDS = 86400;
/** The account is kept by the cell; a minute is soon enough to see it grow. */
const REFRESH_MS = 60000;

/** How far back the figures go. */
type Period = 'today' | 'week' | 'all';

export interface ISavingsProps {
  /** Asks the server; `since` is in seconds since the Unix epoch. */
  load: (since: number) => Promise<[Usage, Timeline]>;
  /** The time in seconds since the Unix epoch. */
  now: () => number;
  trans: TranslationBundle;
}

export function Savings(props: ISavingsProps): JSX.Element {
  const { load, now, trans } = props;
  const [period, setPeriod] = React.useState<Period>('today');
  const [account, setAccount] = React.useState<[Usage, Timeline] | null>(null);
  const [error, setError] = React.useState('');
  const label = React.useId();

  React.useEffect(() => {
    let shown = true;
    const ask = async () => {
      try {
        const answer = await load(beginning(period, now()));
        if (shown) {
          setAccount(answer);
          setError('');
        }
      } catch (reason) {
        if (shown) {
          setError(reason instanceof Error ? reason.message : String(reason));
        }
      }
    };
    void ask();
    const timer = setInterval(() => {
      if (!document.hidden) {
        void ask();
      }
    }, REFRESH_MS);
    return () => {
      shown = false;
      clearInterval(timer);
    };
  }, [period, load, now]);

  return (
    <div className="jp-NotebookOS-savings">
      <p>
        <label htmlFor={label}>{trans.__('Period')}</label>{' '}
        <select
          id={label}
          value={period}
          onChange={event => setPeriod(event.target.value as Period)}
        >
          <option value="today">{trans.__('today')}</option>
          <option value="week">{trans.__('the last 7 days')}</option>
          <option value="all">{trans.__('all that is on record')}</option>
        </select>
      </p>
      {error && (
        <p className="jp-NotebookOS-notice jp-mod-warn" role="status">
          {trans.__('The account cannot be read: %1', error)}
        </p>
      )}
      {!error && !account && (
        <p className="jp-NotebookOS-empty">{trans.__('Asking the server…')}</p>
      )}
      {account && <Figures usage={account[0]} trans={trans} />}
      {account && <GpuChart timeline={account[1]} trans={trans} />}
    </div>
  );
}

function beginning(period: Period, now: number): number {
  if (period === 'all') {
    return 0;
  }
  if (period === 'week') {
    return now - 7 * DAY_SECONDS;
  }
  const midnight = new Date(now * 1000);
  midnight.setHours(0, 0, 0, 0);
  return midnight.getTime() / 1000;
}

function Figures(props: {
  usage: Usage;
  trans: TranslationBundle;
}): JSX.Element {
  const { usage, trans } = props;
  const { total, groups } = usage;
  if (!total.cells && !total.gpu_seconds_reserved) {
    return (
      <p className="jp-NotebookOS-empty">
        {trans.__('No cell has run in this period.')}
      </p>
    );
  }
  const most = Math.max(total.gpu_seconds_reserved, total.gpu_seconds_bound, 1);
  return (
    <>
      <dl className="jp-NotebookOS-figures">
        <Bar
          name={trans.__('Reserved for sessions it would be')}
          value={total.gpu_seconds_reserved}
          most={most}
        />
        <Bar
          name={trans.__('Held by cells')}
          value={total.gpu_seconds_bound}
          most={most}
        />
        <div>
          <dt>{trans.__('Saved')}</dt>
          <dd>
            {formatGpuHours(total.gpu_seconds_saved)}
            {total.gpu_seconds_reserved > 0 &&
              ` (${formatShare(total.gpu_seconds_saved / total.gpu_seconds_reserved)})`}
          </dd>
        </div>
        {total.gpu_cells > 0 && (
          <div>
            <dt>{trans.__('GPU cells that started within a second')}</dt>
            <dd>
              {trans.__(
                '%1 of %2 (%3)',
                total.at_once,
                total.gpu_cells,
                formatShare(total.at_once / total.gpu_cells)
              )}
            </dd>
          </div>
        )}
        {total.wait_ms_p50 !== null && total.wait_ms_p99 !== null && (
          <div>
            <dt>{trans.__('Wait of GPU cells')}</dt>
            <dd>
              {trans.__(
                'half within %1, 99% within %2',
                formatDuration(total.wait_ms_p50),
                formatDuration(total.wait_ms_p99)
              )}
            </dd>
          </div>
        )}
      </dl>
      <WaitTimes
        bounds_ms={usage.wait_bounds_ms}
        counts={total.wait_counts}
        trans={trans}
      />
      <table className="jp-NotebookOS-table">
        <caption className="jp-NotebookOS-srOnly">
          {trans.__('GPU-hours by notebook')}
        </caption>
        <thead>
          <tr>
            <th scope="col">{trans.__('Notebook')}</th>
            <th scope="col">{trans.__('Cells')}</th>
            <th scope="col">{trans.__('Held')}</th>
            <th scope="col">{trans.__('Saved')}</th>
          </tr>
        </thead>
        <tbody>
          {groups.map(group => (
            <tr key={group.name}>
              <th scope="row">{group.name || trans.__('(no notebook)')}</th>
              <td>{group.cells}</td>
              <td>{formatGpuHours(group.gpu_seconds_bound)}</td>
              <td>{formatGpuHours(group.gpu_seconds_saved)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function Bar(props: {
  name: string;
  value: number;
  most: number;
}): JSX.Element {
  const words = formatGpuHours(props.value);
  return (
    <div>
      <dt>{props.name}</dt>
      <dd>
        <span
          className="jp-NotebookOS-bar"
          style={{ width: `${(100 * props.value) / props.most}%` }}
          aria-hidden
        />
        {words}
      </dd>
    </div>
  );
}
