/** What other plugins, ours and those of others, may ask for. */
import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';

import type { Preferences } from './preferences';
import type { ClusterState } from './reduce';
import type {
  Kernel,
  SettingsPatch,
  SettingsResult,
  Timeline,
  Usage
} from './wire';

/** The cluster as the server last told it, kept up to date. */
export interface IClusterModel extends IDisposable {
  /** What is known now. */
  readonly state: ClusterState;
  /** Emitted after each change of `state`. */
  readonly changed: ISignal<IClusterModel, void>;
  /** The kernel with this id, if it is one of ours. */
  kernel(id: string | undefined): Kernel | undefined;
  /** Ask the server now instead of at the next interval. */
  refresh(): Promise<void>;
  /** Move a replica, to a host of the scheduler's choice; rejects with `Refused` if it cannot. */
  migrate(kernelId: string, replica: number): Promise<void>;
  /** Let a kernel without a majority go on; rejects with `Refused` if it cannot. */
  continueUnprotected(kernelId: string): Promise<void>;
  /** Have the next cell that it can run begin on a replica; null leaves the choice to the scheduler. */
  preferExecutor(kernelId: string, replica: number | null): Promise<void>;
  /** Ask for one more host; rejects with `Refused` when there are as many as there may be. */
  addHost(): Promise<void>;
  /** Empty a host and, with `release`, give it back then; with `drain` false use it again. */
  drainHost(hostId: string, drain: boolean, release?: boolean): Promise<void>;
  /** What cells took since a time (seconds since the Unix epoch), by notebook. */
  usage(since: number): Promise<Usage>;
  /** GPUs that were there and that were bound, since a time (seconds since the Unix epoch). */
  timeline(since: number): Promise<Timeline>;
  /** Change the settings of a kernel; rejects with `Refused` when they are impossible. */
  patchKernel(id: string, patch: SettingsPatch): Promise<SettingsResult>;
}

export const IClusterModel = new Token<IClusterModel>(
  'notebookos-ext:IClusterModel',
  'The NotebookOS cluster behind this server: hosts, GPUs, kernels, replicas and waiting cells.'
);

/** What the user prefers. */
export type IPreferences = Pick<Preferences, 'values' | 'changed' | 'wants'>;

export const IPreferences = new Token<IPreferences>(
  'notebookos-ext:IPreferences',
  'What the user prefers of NotebookOS: the side of the panel, lines under cells, notifications.'
);
