/** Provides the cluster's model to the other plugins. */
import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';

import { ClusterModel } from '../model';
import { IClusterModel } from '../tokens';

export const modelPlugin: JupyterFrontEndPlugin<IClusterModel> = {
  id: 'notebookos-ext:model',
  description: 'Keeps the state of the NotebookOS cluster up to date.',
  autoStart: true,
  provides: IClusterModel,
  activate: (app: JupyterFrontEnd): IClusterModel => {
    const { serverSettings, events } = app.serviceManager;
    return new ClusterModel({ serverSettings, events });
  }
};
