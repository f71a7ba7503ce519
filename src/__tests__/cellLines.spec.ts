import type { NotebookPanel } from '@jupyterlab/notebook';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import { Panel, PanelLayout, Widget } from '@lumino/widgets';

import { keptOf, lineOf, readKept } from '../cellLine';
import { DEFAULT_PREFERENCES } from '../preferences';
import { CellLines } from '../widgets/cellLines';
import type { Cluster } from '../wire';
import { cluster, FixedModel } from './samples';

const trans = nullTranslator.load('notebookos_ext');

/** The sample's GPU cell, ended. */
const ended = () => ({
  ...cluster().kernels[0].cells[0],
  state: 'done' as const,
  ran_ms: 34000
});

describe('lineOf', () => {
  const { kernels, waiting } = cluster();
  const [running, failed] = kernels[0].cells;

  it('says how long a cell waited, where it runs and on which GPU', () => {
    expect(lineOf(kernels[0], running, undefined, trans)).toEqual({
      text: 'waited 413 ms · host-2 · GPU 0 (simulated) · running',
      waits: false
    });
    expect(lineOf(kernels[0], ended(), undefined, trans)?.text).toBe(
      'waited 413 ms · host-2 · GPU 0 (simulated) · 34.0 s'
    );
  });

  it('says nothing of cells without GPUs', () => {
    expect(lineOf(kernels[0], failed, undefined, trans)).toBeNull();
  });

  it('says place, reason, estimate and move of one that waits', () => {
    expect(lineOf(kernels[1], kernels[1].cells[0], waiting[0], trans)).toEqual({
      text:
        'waiting, place 1: 2 GPUs needed, 1 free on host-1 · about 40.0 s more · ' +
        'Replica 1 moves to host-3 (it was asked for): the new replica starts and catches up',
      waits: true
    });
  });
});

describe('what is kept', () => {
  it('is there for GPU cells that have ended', () => {
    expect(keptOf(cluster().kernels[0].cells[0])).toBeNull();
    expect(keptOf({ ...ended(), gpus: 0 })).toBeNull();
    expect(readKept({ ran: keptOf(ended()) })).toEqual(keptOf(ended()));
  });

  it('is not believed blindly', () => {
    const good = keptOf(ended());
    for (const bad of [
      undefined,
      'ran',
      { ran: { ...good, state: 'running' } },
      { ran: { ...good, ran_ms: 'long' } },
      { ran: { ...good, devices: ['0'] } },
      { ran: { ...good, host_id: 7 } }
    ]) {
      expect(readKept(bad)).toBeNull();
    }
  });
});

describe('CellLines', () => {
  let model: FixedModel;
  let lines: CellLines;
  let interrupted: number;
  let cells: { widget: Panel; metadata: Map<string, unknown> }[];
  let values: Record<string, unknown>;

  /** As much of a code cell as the lines look at. */
  function fakeCell(id: string) {
    const widget = new Panel();
    const metadata = new Map<string, unknown>();
    const footer = new Widget();
    footer.addClass('footer');
    widget.addWidget(footer);
    Object.assign(widget, {
      isPlaceholder: () => false,
      model: {
        id,
        type: 'code',
        getMetadata: (key: string) => metadata.get(key),
        setMetadata: (key: string, value: unknown) => metadata.set(key, value)
      }
    });
    return { widget, metadata };
  }

  function show(change: (view: Cluster) => void = () => undefined): void {
    const view = cluster();
    change(view);
    model.connected(view);
    lines.update();
  }

  const texts = () =>
    cells.map(({ widget }) =>
      Array.from(
        widget.node.querySelectorAll('.jp-NotebookOS-cellLine span')
      ).map(span => span.textContent)
    );

  /** The notebook runs on the sample's kernel with this number. */
  function open(kernel: number): void {
    model = new FixedModel();
    interrupted = 0;
    cells = ['cell-1', 'cell-3', 'cell-9'].map(fakeCell);
    values = { ...DEFAULT_PREFERENCES };
    const { id } = cluster().kernels[kernel];
    const panel = {
      content: {
        widgets: cells.map(cell => cell.widget),
        modelContentChanged: new Signal({})
      },
      context: { ready: Promise.resolve() },
      disposed: new Signal({}),
      model: { readOnly: false },
      sessionContext: {
        session: { kernel: { id, interrupt: () => interrupted++ } }
      }
    };
    const preferences = { values, changed: new Signal({}), wants: () => true };
    lines = new CellLines(
      panel as unknown as NotebookPanel,
      model,
      preferences as any,
      trans
    );
  }

  afterEach(() => lines.dispose());

  it('stand under their cells, before the footer', () => {
    open(0);
    show();
    expect(texts()).toEqual([
      [],
      ['waited 413 ms · host-2 · GPU 0 (simulated) · running'],
      []
    ]);
    const { widgets } = cells[1].widget.layout as PanelLayout;
    expect(widgets.map(widget => widget.hasClass('footer'))).toEqual([
      false,
      true
    ]);
  });

  it('go on with their cell, and write nothing down unasked', () => {
    open(0);
    show();
    show(view => (view.kernels[0].cells[0] = ended()));
    expect(texts()[1]).toEqual([
      'waited 413 ms · host-2 · GPU 0 (simulated) · 34.0 s'
    ]);
    expect(cells[1].metadata.size).toBe(0);
  });

  it('stay when the server has forgotten their cell', () => {
    open(0);
    show(view => (view.kernels[0].cells[0] = ended()));
    const [before] = texts()[1];
    show(view => (view.kernels[0].cells = []));
    expect(texts()[1]).toEqual([before]);
  });

  it('tell of the latest run of a cell', () => {
    open(0);
    show(view => {
      const older = { ...ended(), cell_id: 'c-0', waited_ms: 9 };
      view.kernels[0].cells = [ended(), older];
    });
    expect(texts()[1][0]).toContain('waited 413 ms');
  });

  it('are kept in the notebook when the user wants so', () => {
    open(0);
    values.keep_cell_line = true;
    cells[1].metadata.set('notebookos', { other: 1 });
    show(view => (view.kernels[0].cells[0] = ended()));
    expect(cells[1].metadata.get('notebookos')).toEqual({
      other: 1,
      ran: keptOf(ended())
    });
    // A page that is opened later knows nothing of that run; the notebook does.
    const { metadata } = cells[1];
    open(0);
    metadata.forEach((value, key) => cells[1].metadata.set(key, value));
    show(view => (view.kernels[0].cells = []));
    expect(texts()[1]).toEqual([
      'waited 413 ms · host-2 · GPU 0 (simulated) · 34.0 s'
    ]);
  });

  it('cancel a cell that waits', () => {
    open(1);
    show();
    const button = () =>
      cells[2].widget.node.querySelector<HTMLButtonElement>('button');
    expect(texts()[2][0]).toContain('waiting, place 1');
    expect(button()?.hidden).toBe(false);
    button()?.click();
    expect(interrupted).toBe(1);
    show(view => (view.kernels[1].cells = []));
    expect(texts()[2]).toEqual([]);
  });

  it('go when they are switched off', () => {
    open(0);
    show();
    values.cell_line = false;
    lines.update();
    expect(texts()).toEqual([[], [], []]);
  });
});
