/** In a notebook's toolbar: which replica is its executor, where, and what it does now. */
import type { ISessionContext } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { cellDevices, kernelState } from '../format';
import { describeMove } from '../moves';
import type { IClusterModel } from '../tokens';
import type { Kernel, Waiting } from '../wire';

export class Indicator extends ReactWidget {
  constructor(
    private readonly _context: ISessionContext,
    private readonly _model: IClusterModel,
    private readonly _trans: TranslationBundle,
    private readonly _onOpen?: () => void
  ) {
    super();
    this.addClass('jp-NotebookOS-indicator');
    this._model.changed.connect(this._onChanged, this);
    this._context.kernelChanged.connect(this._onChanged, this);
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
    const kernel = this._kernel();
    if (!kernel) {
      return null;
    }
    const waiting = this._model.state.cluster?.waiting.find(
      item => item.kernel_id === kernel.id
    );
    const words = describe(kernel, waiting, this._trans);
    return (
      <button
        className="jp-NotebookOS-indicatorButton"
        onClick={this._onOpen}
        title={this._trans.__('Show the NotebookOS panel')}
        data-state={kernel.state}
      >
        <span role="status">{words}</span>
      </button>
    );
  }

  private _kernel(): Kernel | undefined {
    return this._model.kernel(this._context.session?.kernel?.id);
  }

  private _onChanged(): void {
    this.setHidden(this._kernel() === undefined);
    this.update();
  }
}

/** `replica 2 on host-1: running, GPU 0 (simulated)`, or what it waits for. */
export function describe(
  kernel: Kernel,
  waiting: Waiting | undefined,
  trans: TranslationBundle
): string {
  if (kernel.migration) {
    return describeMove(kernel.migration, trans);
  }
  if (waiting) {
    return trans.__('waiting, place %1: %2', waiting.position, waiting.reason);
  }
  const state = kernelState(kernel.state, trans);
  const executor = kernel.replicas.find(replica => replica.executor);
  if (!executor) {
    return state;
  }
  const running = kernel.cells.find(cell => cell.state === 'running');
  const devices = running ? cellDevices(running, trans) : '';
  return devices
    ? trans.__(
        'replica %1 on %2: %3, %4',
        executor.number,
        executor.host_id,
        state,
        devices
      )
    : trans.__(
        'replica %1 on %2: %3',
        executor.number,
        executor.host_id,
        state
      );
}
