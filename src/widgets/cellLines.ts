/** Puts a line under each GPU cell of one notebook, and keeps it up to date. */
import type { Cell as CellWidget } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Throttler } from '@lumino/polling';
import { Signal } from '@lumino/signaling';
import { PanelLayout, Widget } from '@lumino/widgets';

import { CellLine, keptOf, lineOf, Ran, ranText, readKept } from '../cellLine';
import { METADATA_KEY } from '../notebookSettings';
import type { IClusterModel, IPreferences } from '../tokens';
import type { Cell, Kernel } from '../wire';

/** A burst of edits of the notebook is looked at once. */
const GAP_MS = 200;

export class CellLines implements IDisposable {
  constructor(
    private readonly _panel: NotebookPanel,
    private readonly _model: IClusterModel,
    private readonly _preferences: IPreferences,
    private readonly _trans: TranslationBundle
  ) {
    this._soon = new Throttler(() => this.update(), {
      limit: GAP_MS,
      edge: 'trailing'
    });
    this._model.changed.connect(this._onChanged, this);
    this._preferences.changed.connect(this._onChanged, this);
    this._panel.content.modelContentChanged.connect(this._onChanged, this);
    this._panel.disposed.connect(this.dispose, this);
    void this._panel.context.ready.then(() => this._onChanged());
  }

  get isDisposed(): boolean {
    return this._soon.isDisposed;
  }

  dispose(): void {
    if (!this.isDisposed) {
      this._soon.dispose();
      Signal.clearData(this);
    }
  }

  /** Draw every line anew that differs from what it should say. */
  update(): void {
    if (this.isDisposed) {
      return;
    }
    const kernel = this._model.kernel(
      this._panel.sessionContext.session?.kernel?.id
    );
    const runs = new Map<string, Cell>();
    for (const cell of [...(kernel?.cells ?? [])].reverse()) {
      // Newest first: of several runs of one cell the last one counts.
      runs.set(cell.notebook_cell_id, cell);
    }
    for (const widget of this._panel.content.widgets) {
      if (widget.model.type === 'code') {
        this._follow(widget, kernel, runs.get(widget.model.id));
      }
    }
  }

  private _follow(
    widget: CellWidget,
    kernel: Kernel | undefined,
    run: Cell | undefined
  ): void {
    if (run) {
      // The server remembers the latest cells only; the page remembers as long as it is open.
      this._ran.set(widget, keptOf(run));
      this._keep(widget, run);
    }
    const line = this._preferences.values.cell_line
      ? this._line(widget, kernel, run)
      : null;
    const shown = this._lines.get(widget);
    if (!line) {
      shown?.dispose();
      this._lines.delete(widget);
    } else if (shown) {
      shown.say(line);
    } else if (widget.isPlaceholder()) {
      // A cell out of sight has no place for it yet.
      void widget.ready.then(() => this._onChanged());
    } else {
      const created = new Line(this._trans, () => this._cancel());
      created.say(line);
      this._lines.set(widget, created);
      const layout = widget.layout as PanelLayout;
      layout.insertWidget(layout.widgets.length - 1, created);
    }
  }

  private _line(
    widget: CellWidget,
    kernel: Kernel | undefined,
    run: Cell | undefined
  ): CellLine | null {
    if (kernel && run) {
      const waiting = this._model.state.cluster?.waiting.find(
        item => item.kernel_id === kernel.id && item.cell_id === run.cell_id
      );
      return lineOf(kernel, run, waiting, this._trans);
    }
    const kept =
      this._ran.get(widget) ?? readKept(widget.model.getMetadata(METADATA_KEY));
    return kept && { text: ranText(kept, this._trans), waits: false };
  }

  /** Write down how the cell ran, if the user wants that and it is not there yet. */
  private _keep(widget: CellWidget, run: Cell): void {
    const kept = keptOf(run);
    if (
      !kept ||
      !this._preferences.values.keep_cell_line ||
      this._panel.model?.readOnly
    ) {
      return;
    }
    const metadata = widget.model.getMetadata(METADATA_KEY) as
      { ran?: unknown } | undefined;
    if (JSON.stringify(metadata?.ran) !== JSON.stringify(kept)) {
      widget.model.setMetadata(METADATA_KEY, { ...metadata, ran: kept });
    }
  }

  private _cancel(): void {
    void this._panel.sessionContext.session?.kernel?.interrupt();
  }

  private _onChanged(): void {
    if (!this.isDisposed) {
      void this._soon.invoke();
    }
  }

  private readonly _soon: Throttler;
  private readonly _ran = new WeakMap<CellWidget, Ran | null>();
  private readonly _lines = new WeakMap<CellWidget, Line>();
}

/** One line, with a button while its cell waits. */
class Line extends Widget {
  constructor(trans: TranslationBundle, onCancel: () => void) {
    super();
    this.addClass('jp-NotebookOS-cellLine');
    this._button.className = 'jp-NotebookOS-button';
    this._button.textContent = trans.__('Cancel');
    this._button.title = trans.__(
      'Interrupt the kernel, so that the cell ends'
    );
    this._button.onclick = onCancel;
    this.node.append(this._text, this._button);
  }

  /** Touch the page only where it changes. */
  say(line: CellLine): void {
    // Only what goes on is announced to screen readers.
    if (line.waits) {
      this._text.setAttribute('role', 'status');
    } else {
      this._text.removeAttribute('role');
    }
    this._button.hidden = !line.waits;
    if (this._text.textContent !== line.text) {
      this._text.textContent = line.text;
    }
  }

  private readonly _text = document.createElement('span');
  private readonly _button = document.createElement('button');
}
