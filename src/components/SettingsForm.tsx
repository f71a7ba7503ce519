/** What the current notebook asks for, and when a change takes effect. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import {
  DEFAULTS,
  isValid,
  NotebookSettings,
  REPLICA_COUNTS,
  SETTING_NAMES,
  SettingName,
  SYNCS
} from '../notebookSettings';
import {
  EFFECTIVE,
  effectiveWords,
  settingLabel,
  settingValue
} from '../settingWords';

/** What most notebooks set; the rest is folded away while nothing of it is set. */
const FIRST: SettingName[] = ['replica_count', 'gpus_per_cell'];
const REST = SETTING_NAMES.filter(name => !FIRST.includes(name));

export interface ISettingsFormProps {
  /** The notebook's name; null when no notebook is open. */
  notebook: string | null;
  settings: NotebookSettings;
  /** Whether the notebook's kernel is one of ours, so that changes reach it. */
  replicated: boolean;
  /** Types of GPUs that the cluster's hosts have. */
  gpuTypes: string[];
  onChange: (change: Partial<NotebookSettings>) => void;
  trans: TranslationBundle;
}

export function SettingsForm(props: ISettingsFormProps): JSX.Element {
  const { notebook, replicated, settings, trans } = props;
  const id = React.useId();
  const asks = REST.some(name => settings[name] !== DEFAULTS[name]);
  const [open, setOpen] = React.useState(asks);
  React.useEffect(() => {
    if (asks) {
      setOpen(true);
    }
  }, [asks]);
  if (notebook === null) {
    return (
      <p className="jp-NotebookOS-empty">{trans.__('No notebook is open.')}</p>
    );
  }
  const row = (name: SettingName) => (
    <React.Fragment key={name}>
      <label htmlFor={`${id}-${name}`}>{settingLabel(name, trans)}</label>
      <Control {...props} name={name} id={`${id}-${name}`} />
      <span id={`${id}-${name}-when`} className="jp-NotebookOS-detail">
        {effectiveWords(EFFECTIVE[name], trans)}
      </span>
    </React.Fragment>
  );
  return (
    <form
      className="jp-NotebookOS-form"
      aria-label={trans.__('NotebookOS settings of %1', notebook)}
      onSubmit={event => event.preventDefault()}
    >
      {FIRST.map(row)}
      <details
        className="jp-NotebookOS-more"
        open={open}
        onToggle={event => setOpen(event.currentTarget.open)}
      >
        <summary>{trans.__('More settings')}</summary>
        <div className="jp-NotebookOS-form">{REST.map(row)}</div>
      </details>
      <p className="jp-NotebookOS-detail">
        {trans.__('0 asks for nothing in particular and sets no limit.')}{' '}
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

function Control(
  props: ISettingsFormProps & { name: SettingName; id: string }
): JSX.Element {
  const { name, id, settings, gpuTypes, onChange, trans } = props;
  const value = settings[name];
  const choices = choicesOf(name, settings, gpuTypes);
  const change = (next: number | string) => {
    if (isValid(name, next)) {
      onChange({ [name]: next });
    }
  };
  return choices ? (
    <select
      id={id}
      aria-describedby={`${id}-when`}
      value={value}
      onChange={event =>
        change(
          typeof value === 'number'
            ? Number(event.target.value)
            : event.target.value
        )
      }
    >
      {choices.map(choice => (
        <option key={choice} value={choice}>
          {settingValue(name, choice, trans)}
        </option>
      ))}
    </select>
  ) : (
    <input
      id={id}
      aria-describedby={`${id}-when`}
      type="number"
      min={0}
      step={name === 'gpus_per_cell' ? 1 : 'any'}
      value={value}
      onChange={event => change(event.target.valueAsNumber)}
    />
  );
}

/** Null for what is typed in. */
function choicesOf(
  name: SettingName,
  settings: NotebookSettings,
  gpuTypes: string[]
): (number | string)[] | null {
  switch (name) {
    case 'replica_count':
      return REPLICA_COUNTS;
    case 'sync':
      return SYNCS;
    case 'gpu_type':
      // What was asked for elsewhere stays visible where no host has it.
      return [...new Set(['', ...gpuTypes, settings.gpu_type])];
    default:
      return null;
  }
}
