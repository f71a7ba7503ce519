/**
 * Numbers as text, and the few names that the panel derives. Pure; words come from the caller's
 * translation.
 */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Cell, Kernel } from './wire';

/** Bytes in binary units with at most one decimal: `15.8 GiB`. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

/** A duration in the unit that reads best: `12 ms`, `3.4 s`, `5 min 12 s`, `2 h 3 min`. */
export function formatDuration(duration_ms: number): string {
  const duration = Math.max(0, duration_ms);
  if (duration < 999.5) {
    return `${Math.round(duration)} ms`;
  }
  const seconds = duration / 1000;
  if (seconds < 59.95) {
    return `${seconds.toFixed(1)} s`;
  }
  const whole = Math.round(seconds);
  if (whole < 3600) {
    return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  }
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** GPU-seconds as GPU-hours: `6.5 GPU-h`. */
export function formatGpuHours(gpu_seconds: number): string {
  const hours = gpu_seconds / 3600;
  const digits = Math.abs(hours) >= 100 ? 0 : Math.abs(hours) >= 1 ? 1 : 2;
  return `${hours.toFixed(digits)} GPU-h`;
}

/** A share as a whole percentage. */
export function formatShare(share: number): string {
  return `${Math.round(100 * share)}%`;
}

/** Date and time in the reader's locale. */
export function formatDate(seconds: number): string {
  return new Date(seconds * 1000).toLocaleString([], {
    dateStyle: 'short',
    timeStyle: 'short'
  });
}

/** A time of day in the reader's locale. */
export function formatTime(at_seconds: number): string {
  return new Date(at_seconds * 1000).toLocaleTimeString();
}

/** `1` of `<kernel id>:1`. */
export function replicaNumber(replicaId: string): string {
  return replicaId.slice(replicaId.lastIndexOf(':') + 1);
}

/** What a kernel is called in the panel: its notebook, else the start of its id. */
export function kernelTitle(
  kernel: Pick<Kernel, 'id' | 'notebook_path'>,
  trans: TranslationBundle
): string {
  return (
    kernel.notebook_path.split('/').pop() ||
    trans.__('Kernel %1', kernel.id.slice(0, 8))
  );
}

/** The devices of a cell: `GPU 0, 1 (simulated)`; empty when it has none. */
export function cellDevices(
  cell: Pick<Cell, 'devices' | 'device_kind'>,
  trans: TranslationBundle
): string {
  if (!cell.devices.length) {
    return '';
  }
  const indices = cell.devices.join(', ');
  return cell.device_kind === 'simulated'
    ? trans.__('GPU %1 (simulated)', indices)
    : trans.__('GPU %1', indices);
}

/** A kernel's state in words. */
export function kernelState(
  state: Kernel['state'],
  trans: TranslationBundle
): string {
  switch (state) {
    case 'waiting-for-hosts':
      return trans.__('waiting for hosts');
    case 'starting':
      return trans.__('starting');
    case 'idle':
      return trans.__('idle');
    case 'queued':
      return trans.__('waiting');
    case 'busy':
      return trans.__('running');
    case 'no-majority':
      return trans.__('too few replicas left');
    case 'stored':
      return trans.__('stored');
    case 'stopping':
      return trans.__('stopping');
  }
}

/** Where a kernel is that is not on its hosts, and what of it is there or back. */
export function describeStored(
  stored: NonNullable<Kernel['stored']>,
  trans: TranslationBundle
): string {
  const size = formatBytes(stored.size_bytes);
  if (stored.restoring) {
    return trans.__(
      'On its way back from the checkpoint store: %1 of %2',
      formatBytes(stored.fetched_bytes),
      size
    );
  }
  return trans.__(
    'In the checkpoint store since %1 (%2); it comes back when it is used',
    new Date(stored.since * 1000).toLocaleString(),
    size
  );
}

/** A replica's state in words. */
export function replicaState(
  state: Kernel['replicas'][number]['state'],
  trans: TranslationBundle
): string {
  switch (state) {
    case 'starting':
      return trans.__('starting');
    case 'idle':
      return trans.__('idle');
    case 'executing':
      return trans.__('executing');
    case 'lost':
      return trans.__('lost');
    case 'stopping':
      return trans.__('stopping');
  }
}

/** A cell's state in words. */
export function cellState(
  state: Cell['state'],
  trans: TranslationBundle
): string {
  switch (state) {
    case 'waiting':
      return trans.__('waiting');
    case 'running':
      return trans.__('running');
    case 'done':
      return trans.__('done');
    case 'failed':
      return trans.__('failed');
    case 'lost':
      return trans.__('lost');
    case 'aborted':
      return trans.__('aborted');
    case 'rejected':
      return trans.__('rejected');
  }
}
