import {
  DEFAULTS,
  difference,
  readSettings,
  settingsOf,
  statedSettings
} from '../notebookSettings';
import { EFFECTIVE } from '../settingWords';
import { cluster, sample } from './samples';

describe('readSettings', () => {
  it.each([undefined, null, 'x', {}, { replica_count: '5' }])(
    'gives the defaults for %p',
    metadata => {
      expect(readSettings(metadata)).toEqual(DEFAULTS);
    }
  );

  it('reads what makes sense and replaces what does not', () => {
    expect(readSettings({ replica_count: 5, gpus_per_cell: -1 })).toEqual({
      ...DEFAULTS,
      replica_count: 5
    });
    expect(readSettings({ replica_count: 4, gpus_per_cell: 2 })).toEqual({
      ...DEFAULTS,
      gpus_per_cell: 2
    });
    const sense = {
      gpu_type: 'H200',
      gpu_memory_gib: 80,
      memory_gib: 0.5,
      sync: 'after-reply',
      gpu_wait_s: 30
    };
    expect(readSettings(sense)).toEqual({ ...DEFAULTS, ...sense });
    const nonsense = {
      gpu_type: 200,
      gpu_memory_gib: NaN,
      memory_gib: '8',
      sync: 'never',
      gpu_wait_s: -1
    };
    expect(readSettings(nonsense)).toEqual(DEFAULTS);
    expect(readSettings({ gpus_per_cell: 1.5 }).gpus_per_cell).toBe(0);
    expect(readSettings({ gpus_per_cell: 99 }).gpus_per_cell).toBe(0);
  });

  it('falls back to what the kernel does', () => {
    const [kernel] = cluster().kernels;
    expect(readSettings({ replica_count: 1 }, settingsOf(kernel))).toEqual({
      replica_count: 1,
      gpus_per_cell: 1,
      gpu_wait_s: 600,
      gpu_type: 'Simulated GPU',
      gpu_memory_gib: 16,
      memory_gib: 8,
      sync: 'after-reply'
    });
  });

  it('writes anew only what the metadata names', () => {
    const metadata = { replica_count: 4, gpu_type: 'L4', ran: [] };
    expect(statedSettings(metadata, readSettings(metadata))).toEqual({
      replica_count: 3,
      gpu_type: 'L4'
    });
    expect(statedSettings(undefined, DEFAULTS)).toEqual({});
  });

  it('says of each setting what the server says', () => {
    const patch = sample('settings-patch') as object;
    expect(Object.keys(patch).sort()).toEqual(Object.keys(EFFECTIVE).sort());
    const { effective } = sample('settings-result') as { effective: object };
    expect(effective).toEqual(EFFECTIVE);
  });
});

describe('difference', () => {
  it('names only what changed', () => {
    const from = DEFAULTS;
    expect(difference(from, from)).toBeNull();
    expect(difference(from, { ...from, gpus_per_cell: 1 })).toEqual({
      gpus_per_cell: 1
    });
    const to = { ...from, replica_count: 5, sync: 'after-reply' };
    expect(difference(from, to)).toEqual({
      replica_count: 5,
      sync: 'after-reply'
    });
  });
});
