/** In the status bar: bound GPUs of all, how many cells wait, and whether there are warnings. */
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { replicasIcon } from '../icons';
import type { ClusterState } from '../reduce';
import { summarize } from '../summary';
import type { IClusterModel } from '../tokens';

export class StatusItem extends ReactWidget {
  constructor(
    private readonly _model: IClusterModel,
    private readonly _trans: TranslationBundle,
    private readonly _onOpen: () => void
  ) {
    super();
    this.addClass('jp-NotebookOS-statusItem');
    this._model.changed.connect(this._onChanged, this);
    this._onChanged();
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    Signal.clearData(this);
    super.dispose();
  }

  protected override render(): React.ReactElement | null {
    const words = describeState(this._model.state, this._trans);
    if (!words) {
      return null;
    }
    return (
      <button
        className="jp-NotebookOS-statusButton"
        title={this._trans.__('Show the NotebookOS panel')}
        onClick={this._onOpen}
        data-connection={this._model.state.connection.kind}
      >
        <replicasIcon.react tag="span" stylesheet="statusBar" aria-hidden />
        <span>{words}</span>
      </button>
    );
  }

  /** A server without our side has nothing to say there. */
  private _onChanged(): void {
    this.setHidden(!describeState(this._model.state, this._trans));
    this.update();
  }
}

/** `2/8 GPUs · 1 waiting · 1 warning`; empty while nothing is known. */
export function describeState(
  state: ClusterState,
  trans: TranslationBundle
): string {
  const { connection, cluster } = state;
  if (connection.kind === 'missing' || connection.kind === 'loading') {
    return '';
  }
  if (connection.kind !== 'connected') {
    return connection.kind === 'disconnected'
      ? trans.__('NotebookOS: disconnected')
      : trans.__('NotebookOS: the server reports an error');
  }
  if (!cluster) {
    return '';
  }
  const { bound, total, waiting, warnings } = summarize(cluster);
  const parts = [trans.__('%1/%2 GPUs', bound, total)];
  if (waiting) {
    parts.push(trans._n('%1 waiting', '%1 waiting', waiting));
  }
  if (warnings) {
    parts.push(trans._n('%1 warning', '%1 warnings', warnings));
  }
  return parts.join(' · ');
}
