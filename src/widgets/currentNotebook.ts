/** The notebook in front, its settings and its kernel, as one thing that tells when it changes. */
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import type { NotebookSettings } from '../notebookSettings';
import { changeSettings, panelSettings } from '../panelSettings';
import type { IClusterModel } from '../tokens';
import type { Kernel } from '../wire';

export class CurrentNotebook implements IDisposable {
  constructor(
    private readonly _tracker: INotebookTracker,
    private readonly _model: IClusterModel
  ) {
    this._tracker.currentChanged.connect(this._follow, this);
    this._follow();
  }

  /** The notebook, the kernel or the metadata is another one. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** The file's name; null when no notebook is open. */
  get name(): string | null {
    return this._panel?.context.path.split('/').pop() ?? null;
  }

  /** Its kernel, if it is one of ours. */
  get kernel(): Kernel | undefined {
    return this._model.kernel(this._panel?.sessionContext.session?.kernel?.id);
  }

  /** What its metadata says; where that is silent, what its kernel does. */
  get settings(): NotebookSettings {
    return panelSettings(this._panel, this.kernel);
  }

  /** Write a change into the metadata; who watches the metadata tells the server. */
  change(change: Partial<NotebookSettings>): void {
    changeSettings(this._panel, change);
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._leave();
    this._tracker.currentChanged.disconnect(this._follow, this);
    Signal.clearData(this);
  }

  private _follow(): void {
    this._leave();
    const panel = this._tracker.currentWidget;
    this._panel = panel;
    if (panel) {
      panel.model?.metadataChanged.connect(this._emit, this);
      panel.sessionContext.kernelChanged.connect(this._emit, this);
      panel.context.pathChanged.connect(this._emit, this);
      panel.disposed.connect(this._leave, this);
      // The model is there only once the file has been read.
      void panel.context.ready.then(() => {
        if (this._panel === panel && panel.model) {
          panel.model.metadataChanged.connect(this._emit, this);
          this._emit();
        }
      });
    }
    this._emit();
  }

  private _leave(): void {
    const panel = this._panel;
    this._panel = null;
    if (panel) {
      panel.model?.metadataChanged.disconnect(this._emit, this);
      panel.sessionContext.kernelChanged.disconnect(this._emit, this);
      panel.context.pathChanged.disconnect(this._emit, this);
      panel.disposed.disconnect(this._leave, this);
    }
  }

  private _emit(): void {
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _isDisposed = false;
  private _panel: NotebookPanel | null = null;
}
