import type { NotebookPanel } from '@jupyterlab/notebook';
import { framePromise, signalToPromise } from '@jupyterlab/testing';
import { nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import * as React from 'react';

import { SettingsForm } from '../components/SettingsForm';
import { DEFAULTS } from '../notebookSettings';
import { SettingsSync } from '../widgets/settingsSync';
import { cluster, FixedModel } from './samples';

const trans = nullTranslator.load('notebookos_ext');

describe('SettingsForm', () => {
  const changes: unknown[] = [];
  let widget: Widget | undefined;

  async function show(
    notebook: string | null,
    replicated = true
  ): Promise<HTMLElement> {
    widget = ReactWidget.create(
      <SettingsForm
        notebook={notebook}
        settings={{ ...DEFAULTS, gpus_per_cell: 1, gpu_type: 'L4' }}
        gpuTypes={['H200']}
        replicated={replicated}
        onChange={change => changes.push(change)}
        trans={trans}
      />
    );
    Widget.attach(widget, document.body);
    await framePromise();
    await framePromise();
    return widget.node;
  }

  afterEach(() => {
    changes.length = 0;
    widget?.dispose();
  });

  /** The control that a label names. */
  const control = (node: HTMLElement, label: string) => {
    const found = Array.from(node.querySelectorAll('label')).find(
      element => element.textContent === label
    );
    return document.getElementById(found?.htmlFor ?? '') as HTMLInputElement;
  };

  const enter = (input: HTMLElement, value: string) => {
    // React watches the value through a setter of its own; go around it.
    const prototype = Object.getPrototypeOf(input);
    Object.getOwnPropertyDescriptor(prototype, 'value')?.set?.call(
      input,
      value
    );
    const type = input instanceof HTMLSelectElement ? 'change' : 'input';
    input.dispatchEvent(new Event(type, { bubbles: true }));
  };

  it('says when each setting takes effect', async () => {
    const node = await show('a.ipynb');
    const when = (label: string) =>
      document.getElementById(
        control(node, label).getAttribute('aria-describedby') ?? ''
      )?.textContent;
    expect(when('Replicas')).toBe('as soon as hosts allow');
    expect(when('GPUs per cell')).toBe('from the next cell');
    expect(when('Longest wait for GPUs (s)')).toBe('from the next cell');
    for (const label of [
      'GPU type',
      'Memory per GPU (GiB)',
      'Memory of the host (GiB)'
    ]) {
      expect(when(label)).toBe('for replicas placed from now on');
    }
    expect(when('Sync')).toBe('when the kernel is restarted');
  });

  it('offers the possible replica counts', async () => {
    const node = await show('a.ipynb');
    const options = Array.from(
      control(node, 'Replicas').querySelectorAll('option')
    );
    expect(options.map(option => option.value)).toEqual(['1', '3', '5']);
    enter(control(node, 'Replicas'), '5');
    expect(changes).toEqual([{ replica_count: 5 }]);
  });

  it('passes on whole numbers in range only', async () => {
    const input = control(await show('a.ipynb'), 'GPUs per cell');
    for (const value of ['', '-1', '1.5', '65', '2']) {
      enter(input, value);
    }
    expect(changes).toEqual([{ gpus_per_cell: 2 }]);
  });

  it('offers the types that hosts have, and the one that was asked for', async () => {
    const type = control(await show('a.ipynb'), 'GPU type');
    const options = Array.from(type.querySelectorAll('option'));
    expect(options.map(option => option.textContent)).toEqual([
      'any',
      'H200',
      'L4'
    ]);
    enter(type, 'H200');
    expect(changes).toEqual([{ gpu_type: 'H200' }]);
  });

  it('takes memory and waits as numbers, and sync as one of a few', async () => {
    const node = await show('a.ipynb');
    enter(control(node, 'Memory per GPU (GiB)'), '79.5');
    enter(control(node, 'Memory of the host (GiB)'), '-1');
    enter(control(node, 'Longest wait for GPUs (s)'), '30');
    enter(control(node, 'Sync'), 'after-reply');
    expect(changes).toEqual([
      { gpu_memory_gib: 79.5 },
      { gpu_wait_s: 30 },
      { sync: 'after-reply' }
    ]);
  });

  it('says when the kernel is none of ours', async () => {
    const node = await show('a.ipynb', false);
    expect(node.textContent).toContain('used when it runs on a NotebookOS');
  });

  it('says when no notebook is open', async () => {
    const node = await show(null);
    expect(node.textContent).toBe('No notebook is open.');
  });
});

describe('SettingsSync', () => {
  const KERNEL = cluster().kernels[0].id;
  let metadata: unknown;
  let model: FixedModel;
  let panel: ReturnType<typeof fakePanel>;
  let sync: SettingsSync;
  let told: Signal<object, unknown>;

  function fakePanel() {
    const metadataChanged = new Signal<object, { key: string }>({});
    const disposed = new Signal<object, void>({});
    return {
      metadataChanged,
      disposed,
      model: { metadataChanged, getMetadata: () => metadata },
      context: { ready: Promise.resolve(), path: 'work/a.ipynb' },
      sessionContext: { session: { kernel: { id: KERNEL } } }
    };
  }

  beforeEach(async () => {
    metadata = undefined;
    model = new FixedModel();
    panel = fakePanel();
    told = new Signal<object, unknown>({});
    sync = new SettingsSync(panel as unknown as NotebookPanel, model, {
      applied: notebook => told.emit(['applied', notebook]),
      refused: (notebook, error) => told.emit(['refused', notebook, error])
    });
    await panel.context.ready;
  });

  afterEach(() => sync.dispose());

  it('tells a new kernel what its notebook says', async () => {
    metadata = { replica_count: 1, gpus_per_cell: 2 };
    const done = signalToPromise(told);
    model.connected(cluster());
    expect((await done)[1]).toEqual(['applied', 'a.ipynb']);
    expect(model.patches).toEqual([
      [KERNEL, { replica_count: 1, gpus_per_cell: 2 }]
    ]);
  });

  it('tells only what differs from what the kernel does already', async () => {
    model.connected(cluster());
    metadata = { replica_count: 5, gpus_per_cell: 0 };
    const done = signalToPromise(told);
    panel.metadataChanged.emit({ key: 'notebookos' });
    await done;
    expect(model.patches).toEqual([[KERNEL, { gpus_per_cell: 0 }]]);
  });

  it('passes on that the server refuses', async () => {
    model.patchKernel = () => Promise.reject(new Error('too many'));
    model.connected(cluster());
    metadata = { gpus_per_cell: 9 };
    const done = signalToPromise(told);
    panel.metadataChanged.emit({ key: 'notebookos' });
    expect((await done)[1]).toEqual([
      'refused',
      'a.ipynb',
      new Error('too many')
    ]);
  });

  it('leaves other metadata and other kernels alone', async () => {
    jest.useFakeTimers();
    try {
      metadata = { gpus_per_cell: 9 };
      model.connected({ ...cluster(), kernels: [] });
      panel.metadataChanged.emit({ key: 'notebookos' });
      panel.metadataChanged.emit({ key: 'kernelspec' });
      await jest.runAllTimersAsync();
      expect(model.patches).toEqual([]);
    } finally {
      jest.useRealTimers();
    }
  });

  it('hears nothing once its notebook is closed', async () => {
    jest.useFakeTimers();
    try {
      model.connected(cluster());
      metadata = { gpus_per_cell: 9 };
      panel.metadataChanged.emit({ key: 'notebookos' });
      panel.disposed.emit();
      await jest.runAllTimersAsync();
      expect(sync.isDisposed).toBe(true);
      expect(model.patches).toEqual([]);
    } finally {
      jest.useRealTimers();
    }
  });
});
