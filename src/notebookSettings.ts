/** The settings of a notebook: read from its metadata, clamped, and compared. Pure. */
import type { SettingsPatch } from './wire';

/** Key of the notebook's metadata. */
export const METADATA_KEY = 'notebookos';

/** Replica counts that a notebook may ask for. */
export const REPLICA_COUNTS = [1, 3, 5];

/** More GPUs than any host of ours could have. */
export const GPUS_MAX = 64;

export type NotebookSettings = {
  readonly replica_count: number;
  readonly gpus_per_cell: number;
};

export const DEFAULTS: NotebookSettings = {
  replica_count: 3,
  gpus_per_cell: 0
};

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
  const { replica_count, gpus_per_cell } = source;
  return {
    replica_count: REPLICA_COUNTS.includes(replica_count as number)
      ? (replica_count as number)
      : fallback.replica_count,
    gpus_per_cell: isGpuCount(gpus_per_cell)
      ? gpus_per_cell
      : fallback.gpus_per_cell
  };
}

/** What must be told to the server to get from one to the other; null when they are equal. */
export function difference(
  from: NotebookSettings,
  to: NotebookSettings
): SettingsPatch | null {
  const patch: SettingsPatch = {};
  if (from.replica_count !== to.replica_count) {
    patch.replica_count = to.replica_count;
  }
  if (from.gpus_per_cell !== to.gpus_per_cell) {
    patch.gpus_per_cell = to.gpus_per_cell;
  }
  return Object.keys(patch).length ? patch : null;
}

function isGpuCount(value: unknown): value is number {
  return (
    typeof value === 'number' &&
    Number.isInteger(value) &&
    value >= 0 &&
    value <= GPUS_MAX
  );
}
