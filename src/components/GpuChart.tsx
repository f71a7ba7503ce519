/** GPUs that were there and GPUs that were bound, over time: a chart, and the same in words. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatDate } from '../format';
import type { Timeline } from '../wire';

const WIDTH = 300;
const HEIGHT = 60;

export interface IGpuChartProps {
  timeline: Timeline;
  trans: TranslationBundle;
}

export function GpuChart(props: IGpuChartProps): JSX.Element | null {
  const { timeline, trans } = props;
  const { points, since, until } = timeline;
  const provisioned = points.map(point => point.provisioned);
  const bound = points.map(point => point.bound);
  const known = points.filter(point => point.provisioned !== null);
  const most = Math.max(0, ...known.map(point => point.provisioned ?? 0));
  if (!most) {
    return null;
  }
  return (
    <figure className="jp-NotebookOS-gpuChart">
      <figcaption>
        {trans.__(
          'GPUs over time: on average %1 bound of %2 provisioned; at most %3 bound at once',
          mean(bound).toFixed(1),
          mean(provisioned).toFixed(1),
          Math.max(...known.map(point => point.bound_most ?? 0))
        )}
      </figcaption>
      <svg
        aria-hidden
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
      >
        <path className="jp-mod-provisioned" d={steps(provisioned, most)} />
        <path className="jp-mod-bound" d={steps(bound, most)} />
      </svg>
      <p className="jp-NotebookOS-detail">
        <span>{formatDate(since)}</span>
        <span className="jp-mod-bound">{trans.__('bound')}</span>
        <span className="jp-mod-provisioned">{trans.__('provisioned')}</span>
        <span>{formatDate(until)}</span>
      </p>
    </figure>
  );
}

function mean(values: (number | null)[]): number {
  const known = values.filter(value => value !== null) as number[];
  return known.reduce((sum, value) => sum + value, 0) / known.length;
}

/** One column for each value, none where nothing is on record. */
export function steps(values: (number | null)[], most: number): string {
  const width = WIDTH / values.length;
  return values
    .map((value, index) => {
      if (!value) {
        return '';
      }
      const height = (HEIGHT * value) / most;
      const x = round(index * width);
      return `M${x} ${HEIGHT}v${round(-height)}h${round(width)}v${round(height)}z`;
    })
    .join('');
}

const round = (value: number) => Math.round(value * 10) / 10;
