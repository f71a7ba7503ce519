/** Brings what each notebook asks for in its metadata to its kernel. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import {
  ITranslator,
  nullTranslator,
  TranslationBundle
} from '@jupyterlab/translation';

import { SETTING_NAMES, settingsOf } from '../notebookSettings';
import { Refused } from '../request';
import { effectiveWords, settingLabel, settingValue } from '../settingWords';
import { IClusterModel } from '../tokens';
import { ISettingsListener, SettingsSync } from '../widgets/settingsSync';

const SHOWN_MS = 6000;

export const notebookSettingsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:notebook-settings',
  description:
    'Tells the server what each notebook asks for, and the user when it takes effect.',
  autoStart: true,
  requires: [IClusterModel, INotebookTracker],
  optional: [ITranslator],
  activate: (
    _app: JupyterFrontEnd,
    model: IClusterModel,
    tracker: INotebookTracker,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    const listener = notifier(trans);
    const follow = (panel: NotebookPanel) =>
      new SettingsSync(panel, model, listener);
    tracker.forEach(follow);
    tracker.widgetAdded.connect((_tracker, panel) => {
      follow(panel);
    });
  }
};

function notifier(trans: TranslationBundle): ISettingsListener {
  return {
    applied: (notebook, result) => {
      const settings = settingsOf(result.kernel);
      const changes = SETTING_NAMES.flatMap(name => {
        const when = result.effective[name];
        return when
          ? [
              trans.__(
                '%1: %2, %3',
                settingLabel(name, trans),
                settingValue(name, settings[name], trans),
                effectiveWords(when, trans)
              )
            ]
          : [];
      });
      if (changes.length) {
        Notification.info(
          trans.__('Settings of %1. %2.', notebook, changes.join('; ')),
          { autoClose: SHOWN_MS }
        );
      }
    },
    refused: (notebook, error) => {
      const reason =
        error instanceof Refused && error.message
          ? `${error.message} ${error.hint}`.trim()
          : trans.__('The server did not take the new settings.');
      Notification.error(trans.__('%1: %2', notebook, reason), {
        autoClose: false
      });
    }
  };
}
