/** The cluster in a few numbers: pure, for the status bar and for whoever else is short of room. */
import type { Cluster } from './wire';

export type Summary = {
  /** Devices that a cell holds, releases included. */
  readonly bound: number;
  /** Devices of the hosts that answer; one that several hosts list counts once. */
  readonly total: number;
  readonly waiting: number;
  readonly warnings: number;
};

/** What the status bar says of a cluster. */
export function summarize(cluster: Cluster): Summary {
  const devices = new Map<string, boolean>();
  for (const host of cluster.hosts) {
    if (host.state === 'ready') {
      for (const device of host.devices) {
        const held = devices.get(device.id) ?? false;
        devices.set(device.id, held || device.binding !== null);
      }
    }
  }
  return {
    bound: [...devices.values()].filter(Boolean).length,
    total: devices.size,
    waiting: cluster.waiting.length,
    warnings: cluster.warnings.length
  };
}
