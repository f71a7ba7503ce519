import { Event, ServerConnection } from '@jupyterlab/services';
import { Stream } from '@lumino/signaling';

import { ClusterModel } from '../model';
import { Refused } from '../request';
import { emptyCluster, sample } from './samples';

/** A server that answers from a list, and remembers what it was asked. */
function fakeServer() {
  const asked: { url: string; method: string; body: string }[] = [];
  let answer: () => Response = () => json(emptyCluster());
  const settings = ServerConnection.makeSettings({
    baseUrl: 'http://localhost/base/',
    fetch: async input => {
      const request = input as Request;
      const body = await request.clone().text();
      asked.push({ url: request.url, method: request.method, body });
      return answer();
    }
  });
  return {
    asked,
    settings,
    answers: (next: () => Response) => {
      answer = next;
    }
  };
}

const json = (body: unknown, status = 200) =>
  new Response(JSON.stringify(body), { status });

function fakeEvents(settings: ServerConnection.ISettings) {
  const stream = new Stream<Event.IManager, Event.Emission>(
    {} as Event.IManager
  );
  const manager = {
    serverSettings: settings,
    stream
  } as unknown as Event.IManager;
  const emit = (schema_id: string) => stream.emit({ schema_id });
  return { manager, emit };
}

function nextChange(model: ClusterModel): Promise<void> {
  return new Promise(resolve => {
    const slot = () => {
      model.changed.disconnect(slot);
      resolve();
    };
    model.changed.connect(slot);
  });
}

describe('ClusterModel', () => {
  const server = fakeServer();
  const events = fakeEvents(server.settings);
  let model: ClusterModel;

  beforeEach(() => {
    server.asked.length = 0;
    server.answers(() => json(sample('cluster')));
    model = new ClusterModel({
      serverSettings: server.settings,
      events: events.manager,
      auto: false,
      now: () => 1000
    });
  });

  afterEach(() => model.dispose());

  it('starts loading and takes the snapshot', async () => {
    expect(model.state.connection.kind).toBe('loading');
    const changed = nextChange(model);
    await model.refresh();
    await changed;
    expect(model.state.connection.kind).toBe('connected');
    expect(model.state.cluster).toEqual(sample('cluster'));
    expect(server.asked[0].url).toContain('/base/notebookos/api/cluster');
  });

  it('finds a kernel by its id', async () => {
    await model.refresh();
    const { id } = model.state.cluster!.kernels[0];
    expect(model.kernel(id)?.notebook_path).toContain('train_digits');
    expect(model.kernel('other')).toBeUndefined();
    expect(model.kernel(undefined)).toBeUndefined();
  });

  it('asks again when an event of ours arrives, once for a burst', async () => {
    await model.refresh();
    const before = server.asked.length;
    const changed = nextChange(model);
    for (let i = 0; i < 20; i++) {
      events.emit('https://events.notebookos.org/cluster/v1');
    }
    await changed;
    expect(server.asked.length).toBe(before + 1);
  });

  it('leaves events of others alone', async () => {
    await model.refresh();
    const before = server.asked.length;
    events.emit('https://events.jupyter.org/jupyter_server/kernel_actions/v1');
    const changed = nextChange(model);
    events.emit('https://events.notebookos.org/cluster/v1');
    await changed;
    expect(server.asked.length).toBe(before + 1);
  });

  it('says when it is disconnected, keeps what it knew, and recovers', async () => {
    await model.refresh();
    server.answers(() => {
      throw new TypeError('Failed to fetch');
    });
    await model.refresh();
    expect(model.state.connection).toEqual({
      kind: 'disconnected',
      since: 1000
    });
    expect(model.state.cluster).toEqual(sample('cluster'));
    server.answers(() => json(sample('cluster-empty')));
    await model.refresh();
    expect(model.state.connection.kind).toBe('connected');
    expect(model.state.cluster?.hosts).toEqual([]);
  });

  describe('by itself', () => {
    let hidden = false;

    beforeEach(() => {
      jest.useFakeTimers();
      hidden = false;
      Object.defineProperty(document, 'visibilityState', {
        configurable: true,
        get: () => (hidden ? 'hidden' : 'visible')
      });
      model.dispose();
      model = new ClusterModel({ serverSettings: server.settings });
    });

    afterEach(() => {
      show(true);
      Reflect.deleteProperty(document, 'visibilityState');
      jest.useRealTimers();
    });

    const show = (visible: boolean) => {
      hidden = !visible;
      document.dispatchEvent(new Event('visibilitychange'));
    };

    /** How often the server is asked in so many seconds. */
    async function asked(seconds: number): Promise<number> {
      const before = server.asked.length;
      await jest.advanceTimersByTimeAsync(seconds * 1000);
      return server.asked.length - before;
    }

    it('asks seldom while the server does not answer, and again when it does', async () => {
      expect(await asked(60)).toBeGreaterThanOrEqual(10);
      server.answers(() => {
        throw new TypeError('Failed to fetch');
      });
      await asked(120);
      expect(model.state.connection.kind).toBe('disconnected');
      // No pause is longer than half a minute.
      const seldom = await asked(120);
      expect(seldom).toBeGreaterThanOrEqual(3);
      expect(seldom).toBeLessThanOrEqual(12);
      server.answers(() => json(sample('cluster')));
      await asked(40);
      expect(model.state.connection.kind).toBe('connected');
    });

    it('rests while nobody can see it', async () => {
      expect(await asked(20)).toBeGreaterThan(0);
      show(false);
      await asked(10);
      expect(await asked(600)).toBe(0);
      show(true);
      expect(await asked(60)).toBeGreaterThan(0);
    });
  });

  it('survives a server without our side', async () => {
    server.answers(
      () => new Response('<html>Not found</html>', { status: 404 })
    );
    await model.refresh();
    expect(model.state).toEqual({
      connection: { kind: 'missing' },
      cluster: null
    });
  });

  it('shows the sentence of an error answer', async () => {
    server.answers(() => json(sample('error'), 503));
    await model.refresh();
    const { message, hint } = sample('error') as any;
    expect(model.state.connection).toEqual({
      kind: 'failed',
      status: 503,
      message,
      hint
    });
  });

  it('says when it does not understand the answer', async () => {
    server.answers(() => json({ hosts: 'many' }));
    await model.refresh();
    expect(model.state.connection.kind).toBe('mismatched');
  });

  it('patches a kernel', async () => {
    server.answers(() => json(sample('settings-result')));
    const result = await model.patchKernel('a/b', { replica_count: 5 });
    expect(result).toEqual(sample('settings-result'));
    expect(server.asked[0].url).toContain('/notebookos/api/kernels/a%2Fb');
    expect(server.asked[0].method).toBe('PATCH');
    expect(server.asked[0].body).toBe('{"replica_count":5}');
  });

  it('rejects a patch that the server refuses, with its sentence', async () => {
    server.answers(() => json(sample('error'), 409));
    const refused = model.patchKernel('k', { gpus_per_cell: 9 });
    await expect(refused).rejects.toBeInstanceOf(Refused);
    await expect(refused).rejects.toMatchObject({
      status: 409,
      message: (sample('error') as any).message
    });
  });

  it('hears nothing after it is disposed', async () => {
    await model.refresh();
    const before = server.asked.length;
    model.dispose();
    events.emit('https://events.notebookos.org/cluster/v1');
    await Promise.resolve();
    expect(model.isDisposed).toBe(true);
    expect(server.asked.length).toBe(before);
  });
});
