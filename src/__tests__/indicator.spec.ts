import { nullTranslator } from '@jupyterlab/translation';

import { describe as describeKernel } from '../widgets/indicator';
import { cluster } from './samples';

const trans = nullTranslator.load('notebookos_ext');

describe('indicator', () => {
  const { kernels, waiting } = cluster();

  it('names the executor, its host, what it does and on which GPU', () => {
    expect(describeKernel(kernels[0], undefined, trans)).toBe(
      'replica 2 on host-2: running, GPU 0 (simulated)'
    );
  });

  it('says what a waiting cell waits for', () => {
    const still = { ...kernels[1], migration: null };
    expect(describeKernel(still, waiting[0], trans)).toBe(
      'waiting, place 1: 2 GPUs needed, 1 free on host-1'
    );
  });

  it('tells of a move, which comes before all else', () => {
    expect(describeKernel(kernels[1], waiting[0], trans)).toBe(
      'Replica 1 moves to host-3 (it was asked for): ' +
        'the new replica starts and catches up'
    );
  });

  it('says no more than the state before the first cell', () => {
    const fresh = { ...kernels[0], state: 'starting' as const, replicas: [] };
    expect(describeKernel(fresh, undefined, trans)).toBe('starting');
  });
});
