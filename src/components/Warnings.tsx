/** What the user should know, newest first. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatTime, kernelTitle } from '../format';
import type { Kernel, Warning } from '../wire';

export interface IWarningsProps {
  warnings: Warning[];
  kernels: Kernel[];
  trans: TranslationBundle;
}

/** More than these would push the cluster out of sight. */
const SHOWN = 5;

export function Warnings(props: IWarningsProps): JSX.Element | null {
  const { warnings, kernels, trans } = props;
  if (!warnings.length) {
    return null;
  }
  const newest = [...warnings].sort((a, b) => b.at - a.at).slice(0, SHOWN);
  return (
    <ul className="jp-NotebookOS-warnings" aria-label={trans.__('Warnings')}>
      {newest.map(warning => {
        const kernel = kernels.find(k => k.id === warning.kernel_id);
        return (
          <li
            className="jp-NotebookOS-notice jp-mod-warn"
            key={`${warning.at}-${warning.message}`}
          >
            <time>{formatTime(warning.at)}</time>{' '}
            {kernel && <strong>{kernelTitle(kernel, trans)}: </strong>}
            {warning.message}
          </li>
        );
      })}
    </ul>
  );
}
