/** Tells the server of one notebook's settings, and the user when they take effect. */
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IDisposable } from '@lumino/disposable';
import { Debouncer } from '@lumino/polling';
import { Signal } from '@lumino/signaling';

import {
  difference,
  METADATA_KEY,
  readSettings,
  settingsOf
} from '../notebookSettings';
import type { IClusterModel } from '../tokens';
import type { SettingsResult } from '../wire';

/** A person who types a number has finished after this time. */
const TYPING_MS = 500;

/** How the user hears of it. */
export interface ISettingsListener {
  applied(notebook: string, result: SettingsResult): void;
  refused(notebook: string, error: unknown): void;
}

/**
 * The server reads the saved notebook when its kernel starts; this tells it what is not saved yet
 * and what changes later. A change that was refused is not repeated until it changes again.
 */
export class SettingsSync implements IDisposable {
  constructor(
    private readonly _panel: NotebookPanel,
    private readonly _model: IClusterModel,
    private readonly _listener: ISettingsListener
  ) {
    this._soon = new Debouncer(() => this._tell(), TYPING_MS);
    this._model.changed.connect(this._onCluster, this);
    this._panel.disposed.connect(this.dispose, this);
    void this._panel.context.ready.then(() => {
      if (!this._isDisposed) {
        this._panel.model?.metadataChanged.connect(this._onMetadata, this);
      }
    });
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._panel.model?.metadataChanged.disconnect(this._onMetadata, this);
    this._soon.dispose();
    Signal.clearData(this);
  }

  private _onMetadata(_: unknown, change: { key: string }): void {
    if (change.key === METADATA_KEY) {
      void this._soon.invoke();
    }
  }

  /** A kernel that is new to this notebook is told once what its notebook says. */
  private _onCluster(): void {
    const kernel = this._kernel();
    if (kernel && kernel.id !== this._known) {
      this._known = kernel.id;
      void this._soon.invoke();
    }
  }

  private _kernel() {
    return this._model.kernel(this._panel.sessionContext.session?.kernel?.id);
  }

  private async _tell(): Promise<void> {
    const kernel = this._kernel();
    const metadata = this._panel.model?.getMetadata(METADATA_KEY);
    if (this._isDisposed || !kernel || metadata === undefined) {
      return;
    }
    const known = settingsOf(kernel);
    const patch = difference(known, readSettings(metadata, known));
    if (!patch) {
      return;
    }
    const notebook = this._panel.context.path.split('/').pop() ?? '';
    try {
      const result = await this._model.patchKernel(kernel.id, patch);
      this._listener.applied(notebook, result);
    } catch (error) {
      this._listener.refused(notebook, error);
    }
  }

  private readonly _soon: Debouncer;
  private _isDisposed = false;
  private _known: string | undefined;
}
