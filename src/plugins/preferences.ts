/** Provides the user's preferences to the other plugins. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';

import { Preferences } from '../preferences';
import { IPreferences } from '../tokens';

const ID = 'notebookos-ext:preferences';

export const preferencesPlugin: JupyterFrontEndPlugin<IPreferences> = {
  id: ID,
  description: 'Provides what the user prefers of NotebookOS.',
  autoStart: true,
  provides: IPreferences,
  optional: [ISettingRegistry],
  activate: (
    _app: JupyterFrontEnd,
    registry: ISettingRegistry | null
  ): IPreferences => {
    const preferences = new Preferences();
    registry
      ?.load(ID)
      .then(settings => preferences.follow(settings))
      // Without settings the defaults hold.
      .catch(() => undefined);
    return preferences;
  }
};
