/** The list of plugins, and what other extensions may use. */
import { commandsPlugin } from './plugins/commands';
import { modelPlugin } from './plugins/model';
import { notebookSettingsPlugin } from './plugins/notebookSettings';
import { sidebarPlugin } from './plugins/sidebar';
import { toolbarPlugin } from './plugins/toolbar';

export { IClusterModel } from './tokens';

export default [
  modelPlugin,
  commandsPlugin,
  sidebarPlugin,
  notebookSettingsPlugin,
  toolbarPlugin
];
