import type { JupyterFrontEnd } from '@jupyterlab/application';
import { nullTranslator } from '@jupyterlab/translation';

import { runningKernels } from '../plugins/running';
import { cluster, FixedModel } from './samples';

const trans = nullTranslator.load('notebookos_ext');

describe('running kernels', () => {
  let model: FixedModel;
  let executed: unknown[];

  function manager() {
    model = new FixedModel();
    executed = [];
    const execute = async (id: string, args?: unknown) =>
      executed.push([id, args]);
    const app = { commands: { execute } } as unknown as JupyterFrontEnd;
    return runningKernels(app, model, trans);
  }

  it('are those of the cluster, with what they do', () => {
    const running = manager();
    expect(running.running({ mode: 'list' })).toEqual([]);
    model.connected(cluster());
    const items = running.running({ mode: 'list' });
    expect(items.map(item => item.label())).toEqual([
      'train_digits.ipynb',
      'Kernel b2c4e8f0'
    ]);
    expect(items[0].detail?.()).toBe(
      'replica 2 on host-2: running, GPU 0 (simulated)'
    );
  });

  it('open their notebook, or the panel without one', () => {
    const running = manager();
    model.connected(cluster());
    running.running({ mode: 'list' }).forEach(item => item.open?.());
    expect(executed).toEqual([
      ['docmanager:open', { path: 'examples/train_digits.ipynb' }],
      ['notebookos-ext:show', undefined]
    ]);
  });

  it('are drawn anew only when they are different', () => {
    const running = manager();
    let drawn = 0;
    running.runningChanged.connect(() => drawn++);
    model.connected(cluster());
    model.connected(cluster());
    expect(drawn).toBe(1);
    const view = cluster();
    view.kernels[0].state = 'idle';
    model.connected(view);
    expect(drawn).toBe(2);
  });
});
