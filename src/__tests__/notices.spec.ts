import { nullTranslator } from '@jupyterlab/translation';

import { BEHIND_SECONDS, NoticeTracker } from '../notices';
import { sentence } from '../plugins/notifications';
import { DEFAULT_PREFERENCES, Preferences } from '../preferences';
import type { Cluster, Kernel } from '../wire';
import { Signal } from '@lumino/signaling';
import { cluster, schemaDefaults } from './samples';

const trans = nullTranslator.load('notebookos_ext');

/** The sample, later, with its first kernel changed. */
function later(seconds: number, change: Partial<Kernel> = {}): Cluster {
  const view = cluster();
  const [first, ...others] = view.kernels;
  return {
    ...view,
    at: view.at + seconds,
    store: { ...view.store, works: true },
    kernels: [{ ...first, not_durable: [], ...change }, ...others]
  };
}

const words = (tracker: NoticeTracker, view: Cluster) =>
  tracker.next(view).map(notice => sentence(notice, trans));

describe('NoticeTracker', () => {
  it('tells of each warning of the server once, however often it is there', () => {
    const tracker = new NoticeTracker();
    expect(words(tracker, later(0))).toEqual([
      'train_digits.ipynb: Replica 3 was lost with its host; the kernel goes on with two.',
      'No GPU was found: devices are simulated.'
    ]);
    const again = later(5);
    again.warnings.forEach(warning => (warning.at += 5));
    expect(words(tracker, again)).toEqual([]);
  });

  it('tells that the store fails once each time, and not as a warning too', () => {
    const tracker = new NoticeTracker();
    tracker.next(later(0));
    const failing = (seconds: number): Cluster => {
      const view = { ...later(seconds), store: cluster().store };
      const message = `host-1: ${view.store.error}`;
      const warning = { kernel_id: null, message, at: view.at };
      return { ...view, warnings: [...view.warnings, warning] };
    };
    const told = [
      'Large variables are not kept by other hosts for now: ' +
        cluster().store.error
    ];
    expect(words(tracker, failing(1))).toEqual(told);
    expect(words(tracker, failing(2))).toEqual([]);
    expect(words(tracker, later(3))).toEqual([]);
    expect(words(tracker, failing(4))).toEqual(told);
  });

  it('tells of a lost executor, and of no lost standby', () => {
    const tracker = new NoticeTracker();
    tracker.next(later(0));
    const replicas = later(0).kernels[0].replicas;
    const gone = (number: number) => ({
      replicas: replicas.map(replica =>
        replica.number === number
          ? { ...replica, state: 'lost' as const }
          : replica
      )
    });
    expect(words(tracker, later(1, gone(1)))).toEqual([]);
    expect(words(tracker, later(2, gone(2)))).toEqual([
      'train_digits.ipynb lost its executor on host-2. ' +
        'Another replica has its variables and takes over.'
    ]);
    expect(words(tracker, later(3, gone(2)))).toEqual([]);
  });

  it('takes a restart by the user for no loss', () => {
    const tracker = new NoticeTracker();
    tracker.next(later(0));
    const replicas = later(0).kernels[0].replicas.map(replica => ({
      ...replica,
      state: 'lost' as const
    }));
    expect(words(tracker, later(1, { replicas, epoch: 2 }))).toEqual([]);
  });

  it('names what newly holds a kernel', () => {
    const tracker = new NoticeTracker();
    const { held } = later(0).kernels[0];
    tracker.next(later(0, { held: [] }));
    expect(words(tracker, later(1, { held }))).toEqual([
      'train_digits.ipynb is held to its executor: ' +
        'connection cannot travel to another replica.'
    ]);
    expect(words(tracker, later(2, { held }))).toEqual([]);
  });

  it('tells of late durability after a while, once each time', () => {
    const tracker = new NoticeTracker();
    const behind = { not_durable: ['model', 'data'] };
    tracker.next(later(0, behind));
    expect(words(tracker, later(BEHIND_SECONDS - 1, behind))).toEqual([]);
    const said = words(tracker, later(BEHIND_SECONDS, behind));
    expect(said).toEqual([
      'train_digits.ipynb: not yet kept by other hosts: model, data. ' +
        'They would be lost with the executor.'
    ]);
    expect(words(tracker, later(90, behind))).toEqual([]);
    expect(words(tracker, later(91))).toEqual([]);
    tracker.next(later(92, behind));
    expect(words(tracker, later(92 + BEHIND_SECONDS, behind))).toHaveLength(1);
  });
});

describe('Preferences', () => {
  it('have the defaults of the schema', () => {
    expect(schemaDefaults('preferences')).toEqual(DEFAULT_PREFERENCES);
  });

  it('switch each kind of notice off', () => {
    const preferences = new Preferences();
    const composite: Record<string, boolean> = {};
    const settings = { composite, changed: new Signal<any, void>({}) };
    preferences.follow(settings);
    const kinds = [
      'executor-lost',
      'kernel-held',
      'durability-behind',
      'server-warning'
    ] as const;
    for (const kind of kinds) {
      expect(preferences.wants(kind)).toBe(true);
      composite[`notify_${kind.replace('-', '_')}`] = false;
      settings.changed.emit();
      expect(preferences.wants(kind)).toBe(false);
    }
  });
});
