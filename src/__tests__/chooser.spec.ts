import type { NotebookPanel } from '@jupyterlab/notebook';
import { framePromise } from '@jupyterlab/testing';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { Chooser, gpuCounts } from '../widgets/chooser';
import { cluster, FixedModel } from './samples';

const trans = nullTranslator.load('notebookos_ext');
const KERNEL = cluster().kernels[0].id;

describe('Chooser', () => {
  let metadata: Record<string, unknown>;
  let readOnly: boolean;
  let model: FixedModel;
  let chooser: Chooser;

  beforeEach(() => {
    metadata = {};
    readOnly = false;
    model = new FixedModel();
    const notebook = {
      metadataChanged: new Signal<object, void>({}),
      get readOnly() {
        return readOnly;
      },
      getMetadata: (key: string) => metadata[key],
      setMetadata: (key: string, value: unknown) => {
        metadata[key] = value;
        notebook.metadataChanged.emit();
      }
    };
    const panel = {
      model: notebook,
      context: { ready: Promise.resolve() },
      sessionContext: {
        session: { kernel: { id: KERNEL } },
        kernelChanged: new Signal<object, void>({})
      }
    };
    chooser = new Chooser(panel as unknown as NotebookPanel, model, trans);
    Widget.attach(chooser, document.body);
  });

  afterEach(() => chooser.dispose());

  async function selects(): Promise<HTMLSelectElement[]> {
    await framePromise();
    await chooser.renderPromise;
    await framePromise();
    return Array.from(chooser.node.querySelectorAll('select'));
  }

  const choose = (select: HTMLSelectElement, value: string) => {
    select.value = value;
    select.dispatchEvent(new Event('change', { bubbles: true }));
  };

  it('hides where the kernel is none of ours', async () => {
    model.connected({ ...cluster(), kernels: [] });
    expect(await selects()).toEqual([]);
    expect(chooser.isHidden).toBe(true);
  });

  it('shows what the kernel does, and when a choice takes effect', async () => {
    model.connected(cluster());
    const [gpus, replicas] = await selects();
    expect(gpus.selectedOptions[0].textContent).toBe('1 GPU');
    expect(gpus.title).toBe('GPUs per cell (from the next cell)');
    expect(replicas.selectedOptions[0].textContent).toBe('5 replicas');
    expect(replicas.getAttribute('aria-label')).toBe('Replicas');
  });

  it('writes what is chosen into the metadata, and shows it', async () => {
    metadata['notebookos'] = { replica_count: 3, gpus_per_cell: 9999 };
    model.connected(cluster());
    let [gpus] = await selects();
    choose(gpus, '2');
    expect(metadata['notebookos']).toEqual({
      replica_count: 3,
      gpus_per_cell: 2
    });
    [gpus] = await selects();
    expect(gpus.selectedOptions[0].textContent).toBe('2 GPUs');
  });

  it('cannot be used in a notebook that is only read', async () => {
    readOnly = true;
    model.connected(cluster());
    expect((await selects()).map(select => select.disabled)).toEqual([
      true,
      true
    ]);
  });
});

describe('gpuCounts', () => {
  it('goes up to the largest host, and keeps what was asked for', () => {
    expect(gpuCounts(cluster(), 1)).toEqual([0, 1, 2]);
    expect(gpuCounts(cluster(), 8)).toEqual([0, 1, 2, 8]);
    expect(gpuCounts(null, 0)).toEqual([0]);
  });
});
