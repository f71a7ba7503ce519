import { framePromise } from '@jupyterlab/testing';
import { nullTranslator } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { INITIAL } from '../reduce';
import { summarize } from '../summary';
import { describeState, StatusItem } from '../widgets/statusItem';
import { cluster, emptyCluster, FixedModel } from './samples';

const trans = nullTranslator.load('notebookos_ext');

describe('status item', () => {
  const connected = { kind: 'connected' } as const;

  it('counts devices of hosts that answer, each once', () => {
    const view = cluster();
    expect(summarize(view)).toEqual({
      bound: 2,
      total: 4,
      waiting: 1,
      warnings: 2
    });
    // A second host of the same machine lists the first one's devices too.
    view.hosts.push({ ...view.hosts[1], id: 'host-4' });
    expect(summarize(view)).toMatchObject({ bound: 2, total: 4 });
  });

  it('says no more than there is', () => {
    const words = (view = cluster()) =>
      describeState({ connection: connected, cluster: view }, trans);
    expect(words()).toBe('2/4 GPUs · 1 waiting · 2 warnings');
    expect(words(emptyCluster())).toBe('0/0 GPUs');
  });

  it('says when what it shows would be out of date', () => {
    const state = {
      connection: { kind: 'disconnected', since: 0 } as const,
      cluster: cluster()
    };
    expect(describeState(state, trans)).toBe('NotebookOS: disconnected');
  });

  it('is hidden until the server has answered, and opens the panel', async () => {
    const model = new FixedModel();
    let opened = 0;
    const item = new StatusItem(model, trans, () => opened++);
    Widget.attach(item, document.body);
    expect(model.state).toBe(INITIAL);
    expect(item.isHidden).toBe(true);
    model.connected(cluster());
    await framePromise();
    await framePromise();
    expect(item.isHidden).toBe(false);
    item.node.querySelector('button')?.click();
    expect(opened).toBe(1);
    item.dispose();
    expect(() => model.connected(emptyCluster())).not.toThrow();
  });
});
