/** The list of plugins, and what other extensions may use. */
import { cellLinesPlugin } from './plugins/cellLines';
import { commandsPlugin } from './plugins/commands';
import { launcherPlugin } from './plugins/launcher';
import { modelPlugin } from './plugins/model';
import { notebookSettingsPlugin } from './plugins/notebookSettings';
import { notificationsPlugin } from './plugins/notifications';
import { preferencesPlugin } from './plugins/preferences';
import { runningPlugin } from './plugins/running';
import { sidebarPlugin } from './plugins/sidebar';
import { statusBarPlugin } from './plugins/statusBar';
import { toolbarPlugin } from './plugins/toolbar';

export { IClusterModel, IPreferences } from './tokens';

export default [
  modelPlugin,
  preferencesPlugin,
  commandsPlugin,
  sidebarPlugin,
  notebookSettingsPlugin,
  toolbarPlugin,
  statusBarPlugin,
  notificationsPlugin,
  launcherPlugin,
  cellLinesPlugin,
  runningPlugin
];
