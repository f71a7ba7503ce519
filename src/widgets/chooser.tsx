/** In a notebook's toolbar: its GPUs per cell and its replicas, to be changed at a touch. */
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { REPLICA_COUNTS, SettingName } from '../notebookSettings';
import { changeSettings, panelSettings } from '../panelSettings';
import { EFFECTIVE, effectiveWords, settingLabel } from '../settingWords';
import type { IClusterModel } from '../tokens';
import type { Cluster, Kernel } from '../wire';

export class Chooser extends ReactWidget {
  constructor(
    private readonly _panel: NotebookPanel,
    private readonly _model: IClusterModel,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-NotebookOS-chooser');
    this._model.changed.connect(this._onChanged, this);
    this._panel.sessionContext.kernelChanged.connect(this._onChanged, this);
    void this._panel.context.ready.then(() => {
      if (!this.isDisposed) {
        this._panel.model?.metadataChanged.connect(this._onChanged, this);
        this._onChanged();
      }
    });
    this._onChanged();
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._panel.model?.metadataChanged.disconnect(this._onChanged, this);
    Signal.clearData(this);
    super.dispose();
  }

  protected override render(): React.ReactElement | null {
    const kernel = this._kernel();
    if (!kernel) {
      return null;
    }
    const settings = panelSettings(this._panel, kernel);
    return (
      <>
        {this._select(
          'gpus_per_cell',
          settings.gpus_per_cell,
          gpuCounts(this._model.state.cluster, settings.gpus_per_cell),
          count => this._trans._n('%1 GPU', '%1 GPUs', count)
        )}
        {this._select(
          'replica_count',
          settings.replica_count,
          REPLICA_COUNTS,
          count => this._trans._n('%1 replica', '%1 replicas', count)
        )}
      </>
    );
  }

  private _select(
    name: SettingName,
    value: number,
    choices: number[],
    words: (count: number) => string
  ): React.ReactElement {
    const label = settingLabel(name, this._trans);
    return (
      <select
        aria-label={label}
        title={this._trans.__(
          '%1 (%2)',
          label,
          effectiveWords(EFFECTIVE[name], this._trans)
        )}
        disabled={this._panel.model?.readOnly}
        value={value}
        onChange={event =>
          changeSettings(this._panel, { [name]: Number(event.target.value) })
        }
      >
        {choices.map(choice => (
          <option key={choice} value={choice}>
            {words(choice)}
          </option>
        ))}
      </select>
    );
  }

  private _kernel(): Kernel | undefined {
    return this._model.kernel(this._panel.sessionContext.session?.kernel?.id);
  }

  private _onChanged(): void {
    this.setHidden(this._kernel() === undefined);
    this.update();
  }
}

/** From none to as many as any host has; what was asked for stays visible where none has it. */
export function gpuCounts(cluster: Cluster | null, asked: number): number[] {
  const most = Math.max(
    0,
    ...(cluster?.hosts ?? []).map(host => host.devices.length)
  );
  const counts = Array.from({ length: most + 1 }, (_, count) => count);
  return counts.includes(asked) ? counts : [...counts, asked];
}
