/** Replica count and GPUs per cell of the current notebook, and when a change takes effect. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import {
  GPUS_MAX,
  NotebookSettings,
  REPLICA_COUNTS
} from '../notebookSettings';

export interface ISettingsFormProps {
  /** The notebook's name; null when no notebook is open. */
  notebook: string | null;
  settings: NotebookSettings;
  /** Whether the notebook's kernel is one of ours, so that changes reach it. */
  replicated: boolean;
  onChange: (change: Partial<NotebookSettings>) => void;
  trans: TranslationBundle;
}

export function SettingsForm(props: ISettingsFormProps): JSX.Element {
  const { notebook, settings, replicated, onChange, trans } = props;
  const id = React.useId();
  if (notebook === null) {
    return (
      <p className="jp-NotebookOS-empty">{trans.__('No notebook is open.')}</p>
    );
  }
  return (
    <form
      className="jp-NotebookOS-form"
      aria-label={trans.__('NotebookOS settings of %1', notebook)}
      onSubmit={event => event.preventDefault()}
    >
      <label htmlFor={`${id}-replicas`}>{trans.__('Replicas')}</label>
      <select
        id={`${id}-replicas`}
        aria-describedby={`${id}-replicas-when`}
        value={settings.replica_count}
        onChange={event =>
          onChange({ replica_count: Number(event.target.value) })
        }
      >
        {REPLICA_COUNTS.map(count => (
          <option key={count} value={count}>
            {count}
          </option>
        ))}
      </select>
      <span id={`${id}-replicas-when`} className="jp-NotebookOS-detail">
        {trans.__('as soon as hosts allow')}
      </span>
      <label htmlFor={`${id}-gpus`}>{trans.__('GPUs per cell')}</label>
      <input
        id={`${id}-gpus`}
        aria-describedby={`${id}-gpus-when`}
        type="number"
        min={0}
        max={GPUS_MAX}
        step={1}
        value={settings.gpus_per_cell}
        onChange={event => {
          const gpus = event.target.valueAsNumber;
          if (Number.isInteger(gpus) && gpus >= 0 && gpus <= GPUS_MAX) {
            onChange({ gpus_per_cell: gpus });
          }
        }}
      />
      <span id={`${id}-gpus-when`} className="jp-NotebookOS-detail">
        {trans.__('from the next cell')}
      </span>
      <p className="jp-NotebookOS-detail">
        {replicated
          ? trans.__('Kept in the metadata of %1.', notebook)
          : trans.__(
              'Kept in the metadata of %1; used when it runs on a NotebookOS kernel.',
              notebook
            )}
      </p>
    </form>
  );
}
