/** The samples that pytest reads too, and a model to draw them with. */
import { Signal } from '@lumino/signaling';
import * as fs from 'fs';
import * as path from 'path';

import { ClusterState, INITIAL } from '../reduce';
import type { IClusterModel } from '../tokens';
import {
  Cluster,
  decodeCluster,
  decodeTimeline,
  decodeUsage,
  Kernel,
  SettingsResult,
  Timeline,
  Usage
} from '../wire';

export const WIRE = path.join(__dirname, '../../tests/testdata/wire');

export function sample(name: string): unknown {
  const file = path.join(WIRE, `${name}.json`);
  return JSON.parse(fs.readFileSync(file, { encoding: 'utf-8' }));
}

export const cluster = (): Cluster => decodeCluster(sample('cluster'));
export const emptyCluster = (): Cluster =>
  decodeCluster(sample('cluster-empty'));

export const usage = (): Usage => decodeUsage(sample('usage'));

export const timeline = (): Timeline => decodeTimeline(sample('timeline'));

/** The default of each setting of a schema. */
export function schemaDefaults(name: string): Record<string, unknown> {
  const file = path.join(__dirname, '../../schema', `${name}.json`);
  const { properties } = JSON.parse(fs.readFileSync(file, 'utf-8')) as {
    properties: Record<string, { default: unknown }>;
  };
  return Object.fromEntries(
    Object.entries(properties).map(([key, value]) => [key, value.default])
  );
}

/** Holds what a test puts in; asks no server. */
export class FixedModel implements IClusterModel {
  state: ClusterState = INITIAL;
  readonly changed = new Signal<this, void>(this);
  readonly askedSince: number[] = [];
  readonly asked: string[] = [];
  /** Throws what the server says, if a test wants it to. */
  refuse: (() => void) | undefined;
  account: () => Usage = usage;
  readonly patches: [string, unknown][] = [];
  isDisposed = false;

  show(state: ClusterState): void {
    this.state = state;
    this.changed.emit();
  }

  connected(view: Cluster): void {
    this.show({ connection: { kind: 'connected' }, cluster: view });
  }

  kernel(id: string | undefined): Kernel | undefined {
    return this.state.cluster?.kernels.find(kernel => kernel.id === id);
  }

  async refresh(): Promise<void> {
    this.changed.emit();
  }

  async migrate(kernelId: string, replica: number): Promise<void> {
    this.asked.push(`move ${kernelId}:${replica}`);
    this.refuse?.();
  }

  async continueUnprotected(kernelId: string): Promise<void> {
    this.asked.push(`continue ${kernelId}`);
    this.refuse?.();
  }

  async preferExecutor(
    kernelId: string,
    replica: number | null
  ): Promise<void> {
    this.asked.push(`prefer ${kernelId}:${replica}`);
    this.refuse?.();
  }

  async addHost(): Promise<void> {
    this.asked.push('add a host');
    this.refuse?.();
  }

  async drainHost(
    hostId: string,
    drain: boolean,
    release = false
  ): Promise<void> {
    const what = release ? 'remove' : drain ? 'drain' : 'use';
    this.asked.push(`${what} ${hostId}`);
  }

  async usage(since: number): Promise<Usage> {
    this.askedSince.push(since);
    return this.account();
  }

  async timeline(): Promise<Timeline> {
    return timeline();
  }

  async patchKernel(id: string, patch: unknown): Promise<SettingsResult> {
    this.patches.push([id, patch]);
    const kernel = this.kernel(id);
    if (!kernel) {
      throw new Error(`no kernel ${id}`);
    }
    return { kernel, effective: {} };
  }

  dispose(): void {
    this.isDisposed = true;
    Signal.clearData(this);
  }
}
