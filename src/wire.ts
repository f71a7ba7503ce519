/**
 * The JSON that the server answers; twin of `notebookos_ext/handlers/models.py`.
 *
 * Samples of every shape are in `tests/testdata/wire/`, read by pytest and by jest. Times are
 * seconds since the Unix epoch; durations are `_ms`.
 */
import {
  Decoded,
  dictionary,
  flag,
  list,
  nullable,
  number,
  oneOf,
  record,
  text
} from './decode';

const deviceKind = oneOf('cuda', 'simulated');

const binding = record({
  kernel_id: text,
  replica_id: text,
  cell_id: text,
  since: number,
  releasing: flag
});

const device = record({
  id: text,
  index: number,
  kind: deviceKind,
  name: text,
  memory_bytes: number,
  memory_used_bytes: nullable(number),
  utilization_percent: nullable(number),
  temperature_c: nullable(number),
  power_w: nullable(number),
  shared_with: list(text),
  binding: nullable(binding)
});

const host = record({
  id: text,
  state: oneOf('ready', 'lost'),
  draining: flag,
  leaving: flag,
  machine: text,
  pid: number,
  devices: list(device),
  replica_count: number,
  gpu_type: text,
  memory_bytes: number
});

const member = record({
  role: oneOf('follower', 'pre-candidate', 'candidate', 'leader'),
  votes: flag,
  term: number,
  last_index: number,
  commit_index: number,
  applied_index: number,
  snapshot_index: number,
  log_bytes: number,
  leader_changes: number,
  failure: text
});

const replica = record({
  id: text,
  number,
  host_id: text,
  state: oneOf('starting', 'idle', 'executing', 'lost', 'stopping'),
  pid: nullable(number),
  lag: number,
  executor: flag,
  member: nullable(member)
});

const heldName = record({ name: text, type_name: text, reason: text });

const cell = record({
  cell_id: text,
  notebook_cell_id: text,
  code: text,
  gpus: number,
  gpus_reason: text,
  replica_id: nullable(text),
  host_id: nullable(text),
  devices: list(number),
  device_kind: nullable(deviceKind),
  state: oneOf(
    'waiting',
    'running',
    'done',
    'failed',
    'lost',
    'aborted',
    'rejected'
  ),
  submitted: number,
  waited_ms: nullable(number),
  ran_ms: nullable(number)
});

const migration = record({
  replica_id: nullable(text),
  target: nullable(text),
  phase: oneOf('starting', 'caught-up', 'changing'),
  reason: text,
  since: number
});

const stored = record({
  since: number,
  size_bytes: number,
  restoring: flag,
  fetched_bytes: number
});

const kernel = record({
  id: text,
  name: text,
  notebook_path: text,
  state: oneOf(
    'waiting-for-hosts',
    'starting',
    'idle',
    'queued',
    'busy',
    'no-majority',
    'stored',
    'stopping'
  ),
  epoch: number,
  replica_count: number,
  next_replica_count: number,
  gpus_per_cell: number,
  gpu_type: text,
  gpu_memory_gib: number,
  memory_gib: number,
  sync: text,
  next_sync: text,
  gpu_wait_s: number,
  replicas: list(replica),
  held: list(heldName),
  not_durable: list(text),
  store_bytes: nullable(number),
  preferred_replica: nullable(number),
  migration: nullable(migration),
  stored: nullable(stored),
  majority_lost: nullable(text),
  can_continue: flag,
  unprotected: flag,
  cells: list(cell)
});

const waiting = record({
  kernel_id: text,
  notebook_path: text,
  cell_id: text,
  position: number,
  gpus: number,
  reason: text,
  since: number,
  estimate_ms: nullable(number)
});

const store = record({
  kind: oneOf('folder', 's3'),
  name: text,
  works: flag,
  error: text,
  since: nullable(number),
  failing_hosts: list(text),
  waiting_chunks: number,
  waiting_bytes: number,
  put_bytes: number,
  fetched_bytes: number
});

const warning = record({
  kernel_id: nullable(text),
  message: text,
  at: number
});

const cluster = record({
  version: text,
  at: number,
  backend: text,
  policy: text,
  durable: flag,
  simulated: flag,
  max_hosts: number,
  store,
  hosts: list(host),
  kernels: list(kernel),
  waiting: list(waiting),
  warnings: list(warning)
});

const effective = oneOf('next-cell', 'soon', 'next-placement', 'next-restart');

const settingsResult = record({ kernel, effective: dictionary(effective) });

const usageSum = record({
  name: text,
  cells: number,
  gpu_cells: number,
  gpu_seconds_bound: number,
  gpu_seconds_used: number,
  gpu_seconds_reserved: number,
  gpu_seconds_saved: number,
  at_once: number,
  wait_ms_mean: nullable(number),
  wait_ms_p50: nullable(number),
  wait_ms_p99: nullable(number),
  wait_counts: list(number)
});

const usage = record({
  since: number,
  until: number,
  by: oneOf('user', 'notebook', 'kernel'),
  wait_bounds_ms: list(number),
  total: usageSum,
  groups: list(usageSum)
});

const timeline = record({
  since: number,
  until: number,
  points: list(
    record({
      since: number,
      provisioned: nullable(number),
      bound: nullable(number),
      bound_most: nullable(number)
    })
  )
});

const error = record({ message: text, hint: text, error: text });

export type Binding = Decoded<typeof binding>;
export type Device = Decoded<typeof device>;
export type DeviceKind = Decoded<typeof deviceKind>;
export type Host = Decoded<typeof host>;
export type Member = Decoded<typeof member>;
export type Replica = Decoded<typeof replica>;
export type HeldName = Decoded<typeof heldName>;
export type Cell = Decoded<typeof cell>;
export type Migration = Decoded<typeof migration>;
export type Kernel = Decoded<typeof kernel>;
export type Waiting = Decoded<typeof waiting>;
export type Store = Decoded<typeof store>;
export type Warning = Decoded<typeof warning>;
export type Cluster = Decoded<typeof cluster>;
export type Effective = Decoded<typeof effective>;
export type SettingsResult = Decoded<typeof settingsResult>;
export type Timeline = Decoded<typeof timeline>;
export type Usage = Decoded<typeof usage>;
export type ServerError = Decoded<typeof error>;

/** Body of PATCH notebookos/api/kernels/<id>. */
export type SettingsPatch = {
  replica_count?: number;
  gpus_per_cell?: number;
  gpu_type?: string;
  gpu_memory_gib?: number;
  memory_gib?: number;
  sync?: string;
  gpu_wait_s?: number;
};

/** GET notebookos/api/cluster. */
export const decodeCluster = (value: unknown): Cluster => cluster(value, '');

/** Answer to PUT and DELETE notebookos/api/hosts/<id>/drain. */
export const decodeHost = (value: unknown): Host => host(value, '');

/** Answer to POST notebookos/api/kernels/<id>/migration. */
export const decodeKernel = (value: unknown): Kernel => kernel(value, '');

/** Answer to PATCH notebookos/api/kernels/<id>. */
export const decodeSettingsResult = (value: unknown): SettingsResult =>
  settingsResult(value, '');

/** GET notebookos/api/usage. */
export const decodeUsage = (value: unknown): Usage => usage(value, '');

/** GET notebookos/api/usage/timeline. */
export const decodeTimeline = (value: unknown): Timeline => timeline(value, '');

/** Body of every error answer. */
export const decodeError = (value: unknown): ServerError => error(value, '');
