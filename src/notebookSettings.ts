/** The settings of a notebook: read from its metadata, clamped, and compared. Pure. */
import type { Kernel, SettingsPatch } from './wire';

/** Key of the notebook's metadata. */
export const METADATA_KEY = 'notebookos';

/** Replica counts that a notebook may ask for. */
export const REPLICA_COUNTS = [1, 3, 5];

/** More GPUs than any host of ours could have. */
export const GPUS_MAX = 64;

/** What may be committed before a cell's reply goes out; the empty one: as the cluster does. */
export const SYNCS = [
  '',
  'log-before-reply',
  'after-reply',
  'all-before-reply'
];

const GIB_MAX = 1024 ** 2;
const GPU_WAIT_MAX_S = 30 * 86400;
const TYPE_CHARACTERS = 80;

/** Zero and the empty text ask for nothing in particular. */
export type NotebookSettings = {
  readonly replica_count: number;
  readonly gpus_per_cell: number;
  /** The longest that a cell stands in line for GPUs. */
  readonly gpu_wait_s: number;
  readonly gpu_type: string;
  /** Of each GPU. */
  readonly gpu_memory_gib: number;
  /** Of each replica's host. */
  readonly memory_gib: number;
  readonly sync: string;
};

export type SettingName = keyof NotebookSettings;

export const DEFAULTS: NotebookSettings = {
  replica_count: 3,
  gpus_per_cell: 0,
  gpu_wait_s: 0,
  gpu_type: '',
  gpu_memory_gib: 0,
  memory_gib: 0,
  sync: ''
};

/** In the order of the form. */
export const SETTING_NAMES = Object.keys(DEFAULTS) as SettingName[];

const between = (most: number) => (value: unknown) =>
  typeof value === 'number' && value >= 0 && value <= most;

const VALID: Record<SettingName, (value: unknown) => boolean> = {
  replica_count: value => REPLICA_COUNTS.includes(value as number),
  gpus_per_cell: value => Number.isInteger(value) && between(GPUS_MAX)(value),
  gpu_wait_s: between(GPU_WAIT_MAX_S),
  gpu_type: value =>
    typeof value === 'string' && value.length <= TYPE_CHARACTERS,
  gpu_memory_gib: between(GIB_MAX),
  memory_gib: between(GIB_MAX),
  sync: value => SYNCS.includes(value as string)
};

/** Whether a setting can have the value. */
export function isValid(name: SettingName, value: unknown): boolean {
  return VALID[name](value);
}

/** What a kernel does or is on the way to. */
export function settingsOf(kernel: Kernel): NotebookSettings {
  return {
    replica_count: kernel.next_replica_count,
    gpus_per_cell: kernel.gpus_per_cell,
    gpu_wait_s: kernel.gpu_wait_s,
    gpu_type: kernel.gpu_type,
    gpu_memory_gib: kernel.gpu_memory_gib,
    memory_gib: kernel.memory_gib,
    sync: kernel.next_sync
  };
}

/**
 * What the metadata says, with the fallback for what it lacks or what makes no sense there: anyone
 * can write anything into a notebook file, and the metadata form does not refuse bad values.
 */
export function readSettings(
  metadata: unknown,
  fallback: NotebookSettings = DEFAULTS
): NotebookSettings {
  const source = (
    typeof metadata === 'object' && metadata !== null ? metadata : {}
  ) as Record<string, unknown>;
  return Object.fromEntries(
    SETTING_NAMES.map(name => [
      name,
      isValid(name, source[name]) ? source[name] : fallback[name]
    ])
  ) as NotebookSettings;
}

/** Of `settings` those that the metadata names, whether what it says of them makes sense or not. */
export function statedSettings(
  metadata: object | undefined,
  settings: NotebookSettings
): Partial<NotebookSettings> {
  return Object.fromEntries(
    SETTING_NAMES.filter(name => name in (metadata ?? {})).map(name => [
      name,
      settings[name]
    ])
  );
}

/** What must be told to the server to get from one to the other; null when they are equal. */
export function difference(
  from: NotebookSettings,
  to: NotebookSettings
): SettingsPatch | null {
  const changed = SETTING_NAMES.filter(name => from[name] !== to[name]);
  return changed.length
    ? Object.fromEntries(changed.map(name => [name, to[name]]))
    : null;
}
