/** What the user prefers, as JupyterLab's settings editor keeps it; the defaults without one. */
import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ISignal, Signal } from '@lumino/signaling';

import type { NoticeKind } from './notices';

/** Twin of `schema/preferences.json`. */
export type PreferenceValues = {
  readonly side: 'left' | 'right';
  readonly cell_line: boolean;
  readonly keep_cell_line: boolean;
  readonly notify_executor_lost: boolean;
  readonly notify_kernel_held: boolean;
  readonly notify_durability_behind: boolean;
  readonly notify_store_unreachable: boolean;
  readonly notify_server_warning: boolean;
};

export const DEFAULT_PREFERENCES: PreferenceValues = {
  side: 'left',
  cell_line: true,
  keep_cell_line: false,
  notify_executor_lost: true,
  notify_kernel_held: true,
  notify_durability_behind: true,
  notify_store_unreachable: true,
  notify_server_warning: true
};

export class Preferences {
  /** What is preferred now. */
  get values(): PreferenceValues {
    return this._values;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Whether the user wants to be told of something of this kind. */
  wants(kind: NoticeKind): boolean {
    switch (kind) {
      case 'executor-lost':
        return this._values.notify_executor_lost;
      case 'kernel-held':
        return this._values.notify_kernel_held;
      case 'durability-behind':
        return this._values.notify_durability_behind;
      case 'store-unreachable':
        return this._values.notify_store_unreachable;
      case 'server-warning':
        return this._values.notify_server_warning;
    }
  }

  /** Take over what the settings say, now and whenever they change. */
  follow(settings: Pick<ISettingRegistry.ISettings, 'composite' | 'changed'>) {
    const read = () => {
      this._values = { ...DEFAULT_PREFERENCES, ...settings.composite };
      this._changed.emit();
    };
    settings.changed.connect(read);
    read();
  }

  private _values = DEFAULT_PREFERENCES;
  private readonly _changed = new Signal<this, void>(this);
}
