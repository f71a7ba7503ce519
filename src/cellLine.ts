/** The line under a GPU cell: what it says, and what of it is kept in the notebook. Pure. */
import type { TranslationBundle } from '@jupyterlab/translation';

import { cellDevices, cellState, formatDuration } from './format';
import { describeMove } from './moves';
import type { Cell, Kernel, Waiting } from './wire';

/** What a cell's metadata may keep of its last run, under `notebookos.ran`. */
export type Ran = {
  readonly state: Cell['state'];
  readonly waited_ms: number | null;
  readonly ran_ms: number | null;
  readonly host_id: string | null;
  readonly devices: number[];
  readonly device_kind: Cell['device_kind'];
};

export type CellLine = {
  readonly text: string;
  /** It can be cancelled. */
  readonly waits: boolean;
};

/** The line of a cell that the server knows; null when there is nothing to say. */
export function lineOf(
  kernel: Kernel,
  cell: Cell,
  waiting: Waiting | undefined,
  trans: TranslationBundle
): CellLine | null {
  if (cell.state === 'waiting') {
    return waiting ? waitingLine(kernel, waiting, trans) : null;
  }
  return cell.gpus > 0 ? { text: ranText(cell, trans), waits: false } : null;
}

function waitingLine(
  kernel: Kernel,
  waiting: Waiting,
  trans: TranslationBundle
): CellLine {
  const parts = [
    trans.__('waiting, place %1: %2', waiting.position, waiting.reason)
  ];
  if (waiting.estimate_ms !== null) {
    parts.push(trans.__('about %1 more', formatDuration(waiting.estimate_ms)));
  }
  if (kernel.migration) {
    parts.push(describeMove(kernel.migration, trans));
  }
  return { text: parts.join(' · '), waits: true };
}

/** `waited 0.2 s · host-2 · GPU 1 · 34 s`. */
export function ranText(
  ran: Pick<
    Cell,
    'state' | 'waited_ms' | 'ran_ms' | 'host_id' | 'devices' | 'device_kind'
  >,
  trans: TranslationBundle
): string {
  const parts = [
    ran.waited_ms === null
      ? ''
      : trans.__('waited %1', formatDuration(ran.waited_ms)),
    ran.host_id ?? '',
    cellDevices(ran, trans),
    ran.ran_ms === null ? '' : formatDuration(ran.ran_ms),
    ran.state === 'done' ? '' : cellState(ran.state, trans)
  ];
  return parts.filter(Boolean).join(' · ');
}

/** What is kept of a GPU cell that has ended; null for others. */
export function keptOf(cell: Cell): Ran | null {
  if (!cell.gpus || cell.state === 'waiting' || cell.state === 'running') {
    return null;
  }
  const { state, waited_ms, ran_ms, host_id, devices, device_kind } = cell;
  return { state, waited_ms, ran_ms, host_id, devices, device_kind };
}

/** What a notebook file has kept, if it makes sense: anyone can write anything there. */
export function readKept(metadata: unknown): Ran | null {
  const ran = asObject(asObject(metadata)?.ran);
  const isNumber = (value: unknown) => typeof value === 'number';
  const sensible =
    ran &&
    ENDED.includes(ran.state as string) &&
    [ran.waited_ms, ran.ran_ms].every(ms => ms === null || isNumber(ms)) &&
    (ran.host_id === null || typeof ran.host_id === 'string') &&
    Array.isArray(ran.devices) &&
    ran.devices.every(isNumber);
  return sensible ? (ran as Ran) : null;
}

const ENDED: string[] = ['done', 'failed', 'lost', 'aborted', 'rejected'];

function asObject(value: unknown): Record<string, unknown> | null {
  return typeof value === 'object' && value !== null
    ? (value as Record<string, unknown>)
    : null;
}
