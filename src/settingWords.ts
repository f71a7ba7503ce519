/** The settings of a notebook in words: their names, values, and when each takes effect. Pure. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { NotebookSettings, SettingName } from './notebookSettings';
import type { Effective } from './wire';

/** When a change of each takes effect; the server says the same with each change. */
export const EFFECTIVE: Record<SettingName, Effective> = {
  replica_count: 'soon',
  gpus_per_cell: 'next-cell',
  gpu_wait_s: 'next-cell',
  gpu_type: 'next-placement',
  gpu_memory_gib: 'next-placement',
  memory_gib: 'next-placement',
  sync: 'next-restart'
};

export function settingLabel(
  name: SettingName,
  trans: TranslationBundle
): string {
  switch (name) {
    case 'replica_count':
      return trans.__('Replicas');
    case 'gpus_per_cell':
      return trans.__('GPUs per cell');
    case 'gpu_wait_s':
      return trans.__('Longest wait for GPUs (s)');
    case 'gpu_type':
      return trans.__('GPU type');
    case 'gpu_memory_gib':
      return trans.__('Memory per GPU (GiB)');
    case 'memory_gib':
      return trans.__('Memory of the host (GiB)');
    case 'sync':
      return trans.__('Sync');
  }
}

/** The value, and what zero and the empty text mean. */
export function settingValue(
  name: SettingName,
  value: NotebookSettings[SettingName],
  trans: TranslationBundle
): string {
  switch (name) {
    case 'gpu_wait_s':
      return value ? String(value) : trans.__('without limit');
    case 'gpu_type':
    case 'gpu_memory_gib':
    case 'memory_gib':
      return value ? String(value) : trans.__('any');
    case 'sync':
      return value ? String(value) : trans.__('as the cluster does');
    default:
      return String(value);
  }
}

export function effectiveWords(
  effective: Effective,
  trans: TranslationBundle
): string {
  switch (effective) {
    case 'soon':
      return trans.__('as soon as hosts allow');
    case 'next-cell':
      return trans.__('from the next cell');
    case 'next-placement':
      return trans.__('for replicas placed from now on');
    case 'next-restart':
      return trans.__('when the kernel is restarted');
  }
}
