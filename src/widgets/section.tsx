/** One section of the panel: draws a part of the model, again whenever the model changes. */
import { ReactWidget } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';
import * as React from 'react';

import type { ClusterState } from '../reduce';
import type { IClusterModel } from '../tokens';

/** What a section shows for a state, and its title with its count. */
export type SectionView = {
  title: (state: ClusterState) => string;
  render: (state: ClusterState) => React.ReactElement | null;
};

export class Section extends ReactWidget {
  constructor(
    private readonly _model: IClusterModel,
    private readonly _view: SectionView,
    /** Changes besides the model's that ask for drawing anew. */
    private readonly _also?: ISignal<unknown, unknown>
  ) {
    super();
    this.addClass('jp-NotebookOS-section');
    this._model.changed.connect(this._onChanged, this);
    this._also?.connect(this._onChanged, this);
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
    return this._view.render(this._model.state);
  }

  private _onChanged(): void {
    const title = this._view.title(this._model.state);
    // A new label makes the accordion draw its header, so only when it is new.
    if (this.title.label !== title) {
      this.title.label = title;
    }
    this.update();
  }
}
