import { DEFAULTS, difference, readSettings } from '../notebookSettings';

describe('readSettings', () => {
  it.each([undefined, null, 'x', {}, { replica_count: '5' }])(
    'gives the defaults for %p',
    metadata => {
      expect(readSettings(metadata)).toEqual(DEFAULTS);
    }
  );

  it('reads what makes sense and replaces what does not', () => {
    expect(readSettings({ replica_count: 5, gpus_per_cell: -1 })).toEqual({
      replica_count: 5,
      gpus_per_cell: 0
    });
    expect(readSettings({ replica_count: 4, gpus_per_cell: 2 })).toEqual({
      replica_count: 3,
      gpus_per_cell: 2
    });
    expect(readSettings({ gpus_per_cell: 1.5 }).gpus_per_cell).toBe(0);
    expect(readSettings({ gpus_per_cell: 99 }).gpus_per_cell).toBe(0);
  });

  it('falls back to what the kernel does', () => {
    const kernel = { replica_count: 1, gpus_per_cell: 2 };
    expect(readSettings({ replica_count: 5 }, kernel)).toEqual({
      replica_count: 5,
      gpus_per_cell: 2
    });
  });
});

describe('difference', () => {
  it('names only what changed', () => {
    const from = { replica_count: 3, gpus_per_cell: 0 };
    expect(difference(from, from)).toBeNull();
    expect(difference(from, { ...from, gpus_per_cell: 1 })).toEqual({
      gpus_per_cell: 1
    });
    expect(difference(from, { replica_count: 5, gpus_per_cell: 1 })).toEqual({
      replica_count: 5,
      gpus_per_cell: 1
    });
  });
});
