/** A replica's move to another host in words; pure. */
import type { TranslationBundle } from '@jupyterlab/translation';

import { replicaNumber } from './format';
import type { Migration } from './wire';

/** `Replica 2 moves to host-3 (reason): the new replica starts and catches up`. */
export function describeMove(
  migration: Migration,
  trans: TranslationBundle
): string {
  const { replica_id, target, phase, reason } = migration;
  const step = {
    starting: trans.__('the new replica starts and catches up'),
    'caught-up': trans.__('it takes over when the cell has ended'),
    changing: trans.__('it takes over')
  }[phase];
  if (replica_id === null) {
    return trans.__('A replica is added on %1: %2', target, step);
  }
  const number = replicaNumber(replica_id);
  return target === null
    ? trans.__('Replica %1 is taken away (%2)', number, reason)
    : trans.__('Replica %1 moves to %2 (%3): %4', number, target, reason, step);
}
