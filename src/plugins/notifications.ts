/** Tells the user what needs attention: each thing once, with a way to where it is shown. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import {
  ITranslator,
  nullTranslator,
  TranslationBundle
} from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { kernelTitle } from '../format';
import { Notice, NoticeTracker } from '../notices';
import { IClusterModel, IPreferences } from '../tokens';

export const notificationsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'notebookos-ext:notifications',
  description:
    'Tells of lost executors, held kernels, late durability, a failing store and warnings.',
  autoStart: true,
  requires: [IClusterModel, IPreferences],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IClusterModel,
    preferences: IPreferences,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('notebookos_ext');
    const tracker = new NoticeTracker();
    model.changed.connect(() => {
      const { connection, cluster } = model.state;
      if (connection.kind !== 'connected' || !cluster) {
        return;
      }
      for (const notice of tracker.next(cluster)) {
        if (preferences.wants(notice.kind)) {
          Notification.emit(
            sentence(notice, trans),
            notice.kind === 'kernel-held' ? 'info' : 'warning',
            { autoClose: false, actions: actions(app, notice, trans) }
          );
        }
      }
    });
  }
};

/** What is said of a notice. */
export function sentence(notice: Notice, trans: TranslationBundle): string {
  const title = notice.kernel ? kernelTitle(notice.kernel, trans) : '';
  switch (notice.kind) {
    case 'executor-lost':
      return trans.__(
        '%1 lost its executor on %2. Another replica has its variables and takes over.',
        title,
        notice.detail
      );
    case 'kernel-held':
      return trans.__(
        '%1 is held to its executor: %2 cannot travel to another replica.',
        title,
        notice.detail
      );
    case 'durability-behind':
      return trans.__(
        '%1: not yet kept by other hosts: %2. They would be lost with the executor.',
        title,
        notice.detail
      );
    case 'store-unreachable':
      return trans.__(
        'Large variables are not kept by other hosts for now: %1',
        notice.detail
      );
    case 'server-warning':
      return title ? trans.__('%1: %2', title, notice.detail) : notice.detail;
  }
}

function actions(
  app: JupyterFrontEnd,
  notice: Notice,
  trans: TranslationBundle
): Notification.IAction[] {
  const path = notice.kernel?.notebook_path;
  const panel = {
    label: trans.__('Open panel'),
    callback: () => void app.commands.execute(CommandIDs.show)
  };
  return path
    ? [
        {
          label: trans.__('Open notebook'),
          callback: () => void app.commands.execute('docmanager:open', { path })
        },
        panel
      ]
    : [panel];
}
