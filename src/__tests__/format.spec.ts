import { nullTranslator } from '@jupyterlab/translation';

import {
  cellDevices,
  formatBytes,
  formatDuration,
  kernelTitle,
  replicaNumber
} from '../format';
import { cluster } from './samples';

const trans = nullTranslator.load('notebookos_ext');

describe('format', () => {
  it.each([
    [0, '0 B'],
    [1023, '1023 B'],
    [1536, '1.5 KiB'],
    [16 * 1024 ** 3, '16 GiB'],
    [150.6 * 1024 ** 3, '151 GiB']
  ])('writes %d bytes as %s', (bytes, expected) => {
    expect(formatBytes(bytes)).toBe(expected);
  });

  it.each([
    [-5, '0 ms'],
    [0.4, '0 ms'],
    [999.6, '1.0 s'],
    [59_940, '59.9 s'],
    [59_960, '1 min 0 s'],
    [312_000, '5 min 12 s'],
    [7_380_000, '2 h 3 min']
  ])('writes %d ms as %s', (duration_ms, expected) => {
    expect(formatDuration(duration_ms)).toBe(expected);
  });

  it('names a kernel by its notebook, else by its id', () => {
    const [first, second] = cluster().kernels;
    expect(kernelTitle(first, trans)).toBe('train_digits.ipynb');
    expect(kernelTitle(second, trans)).toBe('Kernel b2c4e8f0');
  });

  it('says that devices are simulated', () => {
    const [running, failed] = cluster().kernels[0].cells;
    expect(cellDevices(running, trans)).toBe('GPU 0 (simulated)');
    expect(cellDevices({ ...running, device_kind: 'cuda' }, trans)).toBe(
      'GPU 0'
    );
    expect(cellDevices(failed, trans)).toBe('');
  });

  it('takes the number from the replica id', () => {
    expect(replicaNumber('6f0d:12')).toBe('12');
  });
});
