import { nullTranslator } from '@jupyterlab/translation';
import { framePromise } from '@jupyterlab/testing';
import { Widget } from '@lumino/widgets';

import { formatTime } from '../format';
import { Refused } from '../request';
import { Sidebar } from '../widgets/sidebar';
import { cluster, emptyCluster, FixedModel } from './samples';

describe('Sidebar', () => {
  let model: FixedModel;
  let sidebar: Sidebar;
  let refusals: string[];

  // The test environment has one that never tells; without one all is drawn.
  beforeAll(() => Reflect.deleteProperty(globalThis, 'IntersectionObserver'));

  beforeEach(() => {
    model = new FixedModel();
    refusals = [];
    sidebar = new Sidebar({
      model,
      translator: nullTranslator,
      actions: {
        open: kernel => model.asked.push(`open ${kernel.notebook_path}`),
        interrupt: id => model.asked.push(`interrupt ${id}`),
        restart: kernel => model.asked.push(`restart ${kernel.id}`),
        goOn: kernel => model.asked.push(`continue ${kernel.id}`)
      },
      onRefused: reason => refusals.push(reason)
    });
    Widget.attach(sidebar, document.body);
  });

  afterEach(() => {
    sidebar.dispose();
  });

  /** React draws in a later frame than the model changes. */
  async function drawn(): Promise<HTMLElement> {
    await framePromise();
    await sidebar.renderPromise;
    await framePromise();
    return sidebar.node;
  }

  const all = (node: HTMLElement, selector: string) =>
    Array.from(node.querySelectorAll<HTMLElement>(selector));
  /** What stands in each cell of a row. */
  const cells = (row: HTMLElement | undefined) =>
    Array.from((row as HTMLTableRowElement).cells).map(
      cell => cell.textContent
    );
  const texts = (node: HTMLElement, selector: string) =>
    all(node, selector).map(element => element.textContent);

  it('says that it is asking the server', async () => {
    const node = await drawn();
    expect(texts(node, '[role=status]')).toEqual(['Asking the server…']);
    expect(node.querySelector('table')).toBeNull();
  });

  it('offers to go on unprotected only where a majority is lost', async () => {
    const view = cluster();
    const [first, second] = view.kernels;
    const reason = 'only 1 of its 3 members is left';
    model.connected({
      ...view,
      kernels: [
        {
          ...first,
          state: 'no-majority',
          majority_lost: reason,
          can_continue: true
        },
        { ...second, unprotected: true }
      ]
    });
    const node = await drawn();
    const card = (id: string) => `[data-kernel="${id}"]`;
    expect(texts(node, `${card(first.id)} .jp-mod-warn`)).toContain(reason);
    expect(texts(node, `${card(first.id)} [data-state]`)).toContain(
      'too few replicas left'
    );
    const buttons = all(node, 'button').filter(button =>
      button.textContent?.startsWith('Go on')
    );
    expect(buttons.length).toBe(1);
    buttons[0].click();
    expect(model.asked).toEqual([`continue ${first.id}`]);
    expect(texts(node, `${card(second.id)} .jp-mod-warn`).join()).toContain(
      'Unprotected'
    );
  });

  it('has a name and a role', () => {
    expect(sidebar.node.getAttribute('role')).toBe('region');
    expect(sidebar.node.getAttribute('aria-label')).toBe('NotebookOS');
  });

  it('shows each host with its devices and who holds them', async () => {
    model.connected(cluster());
    const node = await drawn();
    expect(texts(node, '[data-host] h3')).toEqual([
      'host-1',
      'host-2',
      'host-3'
    ]);
    const held = all(node, '[data-host=host-2] tbody tr').map(cells);
    const since = (seconds: number) => `since ${formatTime(seconds)}`;
    expect(held).toEqual([
      [
        'GPU 0simulated',
        '4 GiB of 16 GiB used88% busy61 °C, 313 W',
        `train_digits.ipynb, replica 2${since(1790000018.4)}`
      ],
      [
        'GPU 1simulated',
        '16 GiB',
        `Kernel b2c4e8f0, replica 1 (releasing)${since(1790000016)}`
      ]
    ]);
    expect(texts(node, '[data-host=host-1] .jp-NotebookOS-state')).toEqual([
      '2 of 2 GPUs free'
    ]);
    expect(texts(node, '[data-host=host-3] .jp-NotebookOS-state')).toEqual([
      'lost'
    ]);
  });

  it('says that logs are not durable, and only then', async () => {
    model.connected(cluster());
    expect((await drawn()).textContent).not.toContain('Not durable');
    model.connected({ ...cluster(), durable: false });
    expect((await drawn()).textContent).toContain('Not durable: raftos');
  });

  it('calls only simulated devices simulated', async () => {
    model.connected(cluster());
    const node = await drawn();
    const real = node.querySelector('[data-host=host-3] tbody th');
    expect(real?.textContent).toBe('GPU 0');
    expect(node.textContent).toContain('Simulated GPUs');
  });

  it('shows replicas, the executor, and what holds a kernel', async () => {
    model.connected(cluster());
    const node = await drawn();
    const [first] = all(node, '[data-kernel]');
    const rows = all(first, '[data-replica]').map(cells);
    expect(rows).toEqual([
      ['1next', 'host-1follows, term 3', 'idle', '4101', 'Next Move'],
      ['2executor', 'host-2leads, term 3', 'executing', '4102', 'Next Move'],
      ['3', 'host-3', 'lost2 log entries behind', '–', 'Next Move']
    ]);
    expect(first.textContent).toContain(
      '3 replicas (5 as soon as hosts allow), 1 GPU per cell · 50 MiB in the checkpoint store'
    );
    expect(texts(first, 'dt')).toEqual(['connection (socket.socket)']);
    expect(texts(first, 'dd')).toEqual([
      'an open socket belongs to one process'
    ]);
    expect(first.textContent).toContain('Not yet durable: model');
  });

  it('shows where each cell ran, how long it waited and ran', async () => {
    model.connected(cluster());
    const node = await drawn();
    const [first] = all(node, '[data-kernel]');
    const rows = all(first, '[data-cell]').map(cells);
    expect(rows).toEqual([
      [
        'for epoch in range(20):running',
        'replica 2, host-2GPU 0 (simulated)',
        '413 ms',
        '–'
      ],
      ['1 / 0failed', 'replica 1, host-1', '2 ms', '31 ms'],
      ['import torch', 'replica 1, host-1', '2 ms', '1.8 s']
    ]);
  });

  it('shows the queue with places and reasons', async () => {
    model.connected(cluster());
    const node = await drawn();
    const row = all(node, '[data-waiting=c-9]').pop();
    expect(cells(row)).toEqual([
      '1',
      'Kernel b2c4e8f0',
      '2',
      '2 GPUs needed, 1 free on host-1for 3.0 s · about 40.0 s more',
      'Cancel'
    ]);
  });

  it('shows warnings, newest first', async () => {
    model.connected(cluster());
    const node = await drawn();
    const [newest, oldest] = texts(node, '.jp-NotebookOS-warnings li');
    expect(newest).toContain('train_digits.ipynb: Replica 3 was lost');
    expect(oldest).toContain('No GPU was found');
  });

  it('says what is empty', async () => {
    model.connected(emptyCluster());
    const node = await drawn();
    expect(texts(node, '.jp-NotebookOS-empty')).toEqual([
      'No cell is waiting.',
      'No host has joined yet.',
      'No kernel runs. Open a notebook with "Python 3 (NotebookOS)".'
    ]);
  });

  const press = (node: HTMLElement, label: string) =>
    all(node, 'button')
      .find(button => button.getAttribute('aria-label') === label)
      ?.click();

  it('moves replicas and drains hosts', async () => {
    model.connected(cluster());
    const node = await drawn();
    press(node, 'Move replica 2 of train_digits.ipynb to another host');
    press(node, 'Drain host-1: move its replicas away');
    press(node, 'Use host-2 again');
    expect(model.asked).toEqual([
      'move 6f0d5a1e-2f0c-4c59-9c2c-3a1b7c0e9d11:2',
      'drain host-1',
      'use host-2'
    ]);
    expect(texts(node, '[data-host=host-2] .jp-NotebookOS-state')).toEqual([
      'draining'
    ]);
  });

  it('chooses who runs the next cell, and takes that back', async () => {
    model.connected(cluster());
    const node = await drawn();
    const label = (number: number) =>
      `Run the next cell of train_digits.ipynb on replica ${number} if it can`;
    const pressed = all(node, '[data-replica] [aria-pressed=true]');
    expect(pressed.map(b => b.getAttribute('aria-label'))).toEqual([label(1)]);
    press(node, label(3));
    press(node, label(1));
    expect(model.asked).toEqual([
      'prefer 6f0d5a1e-2f0c-4c59-9c2c-3a1b7c0e9d11:3',
      'prefer 6f0d5a1e-2f0c-4c59-9c2c-3a1b7c0e9d11:null'
    ]);
  });

  it('adds and removes hosts as long as that is possible', async () => {
    const view = cluster();
    model.connected(view);
    let node = await drawn();
    const add = () =>
      all(node, 'button').find(b => b.textContent === 'Add a host');
    add()?.click();
    press(node, 'Remove host-1 once its replicas have moved away');
    press(node, 'Remove host-3 once its replicas have moved away');
    expect(model.asked).toEqual(['add a host', 'remove host-1']);
    view.hosts[0].draining = view.hosts[0].leaving = true;
    model.connected({ ...view, max_hosts: 3 });
    node = await drawn();
    expect((add() as HTMLButtonElement).disabled).toBe(true);
    expect(texts(node, '[data-host=host-1] .jp-NotebookOS-state')).toEqual([
      'being removed'
    ]);
    expect(texts(node, '[data-host=host-1] button')).toEqual(['Use again']);
  });

  it('says that the checkpoint store fails, and only then', async () => {
    const view = cluster();
    model.connected(view);
    expect((await drawn()).textContent).toContain(
      'cannot be reached (EndpointConnectionError)'
    );
    model.connected({ ...view, store: { ...view.store, works: true } });
    expect((await drawn()).textContent).not.toContain(
      'large variables are not kept'
    );
  });

  it('opens, interrupts and restarts kernels, and cancels cells', async () => {
    model.connected(cluster());
    const node = await drawn();
    press(node, 'Open train_digits.ipynb');
    press(node, 'Interrupt train_digits.ipynb');
    press(node, 'Restart Kernel b2c4e8f0…');
    press(node, 'Cancel the waiting cell of Kernel b2c4e8f0');
    expect(model.asked).toEqual([
      'open examples/train_digits.ipynb',
      'interrupt 6f0d5a1e-2f0c-4c59-9c2c-3a1b7c0e9d11',
      'restart b2c4e8f0-7b1d-4f3a-8a55-0d9e6c7f1a22',
      'interrupt b2c4e8f0-7b1d-4f3a-8a55-0d9e6c7f1a22'
    ]);
  });

  it('interrupts only what does something', async () => {
    const view = cluster();
    view.kernels[0].state = 'idle';
    model.connected(view);
    press(await drawn(), 'Interrupt train_digits.ipynb');
    expect(model.asked).toEqual([]);
  });

  it('draws the far parts of a long list as headings alone', async () => {
    const observed: ((near: boolean) => void)[] = [];
    class Observer {
      constructor(callback: (entries: unknown[]) => void) {
        observed.push(isIntersecting =>
          callback([{ isIntersecting, boundingClientRect: { height: 90 } }])
        );
      }
      observe() {}
      disconnect() {}
    }
    Object.assign(globalThis, { IntersectionObserver: Observer });
    try {
      model.connected(cluster());
      const node = await drawn();
      expect(texts(node, 'h3')).toHaveLength(5);
      expect(node.querySelector('[data-replica]')).toBeNull();
      observed.forEach(tell => tell(true));
      await drawn();
      expect(all(node, '[data-replica]')).toHaveLength(4);
      observed.forEach(tell => tell(false));
      await drawn();
      expect(node.querySelector('[data-replica]')).toBeNull();
    } finally {
      Reflect.deleteProperty(globalThis, 'IntersectionObserver');
    }
  });

  it('shows a move, and offers no second one meanwhile', async () => {
    model.connected(cluster());
    const node = await drawn();
    const [, moving] = all(node, '[data-kernel]');
    expect(texts(moving, '[role=status]')).toEqual([
      'Replica 1 moves to host-3 (it was asked for): ' +
        'the new replica starts and catches up'
    ]);
    expect(texts(moving, 'button')).toEqual(['Interrupt', 'Restart…']);
  });

  it('says why a replica cannot move', async () => {
    model.refuse = () => {
      throw new Refused(409, 'no other host can take it', '');
    };
    model.connected(cluster());
    press(
      await drawn(),
      'Move replica 1 of train_digits.ipynb to another host'
    );
    await drawn();
    expect(refusals).toEqual(['no other host can take it']);
  });

  it('asks for the account only while its section is open', async () => {
    model.connected(cluster());
    const node = await drawn();
    expect(model.askedSince).toEqual([]);
    const section = all(node, 'details').pop() as HTMLDetailsElement;
    section.open = true;
    section.dispatchEvent(new Event('toggle'));
    await drawn();
    await drawn();
    expect(model.askedSince).toHaveLength(1);
    expect(node.textContent).toContain('6.5 GPU-h (81%)');
  });

  it('counts in the titles of its sections', async () => {
    model.connected(cluster());
    await drawn();
    expect(texts(sidebar.node, 'summary')).toEqual([
      'Waiting (1)',
      'Hosts (3)',
      'Kernels (2)',
      'Savings'
    ]);
  });

  it('says that it is disconnected and keeps the last picture', async () => {
    model.show({
      connection: { kind: 'disconnected', since: 0 },
      cluster: cluster()
    });
    const node = await drawn();
    expect(texts(node, '[role=status]')[0]).toContain('Disconnected since');
    expect(all(node, '[data-host]')).toHaveLength(3);
  });

  it('says what to do when the server has no extension', async () => {
    model.show({ connection: { kind: 'missing' }, cluster: null });
    const node = await drawn();
    expect(texts(node, '[role=status]')[0]).toContain(
      'jupyter server extension enable notebookos_ext'
    );
  });

  it('shows the sentence and the hint of an error', async () => {
    model.show({
      connection: { kind: 'failed', status: 503, message: 'No.', hint: 'Try.' },
      cluster: null
    });
    const node = await drawn();
    expect(texts(node, '[role=status]')).toEqual(['No. Try.']);
  });

  it('gives each control and each table a name', async () => {
    model.connected(cluster());
    const node = await drawn();
    for (const table of all(node, 'table')) {
      expect(table.querySelector('caption')?.textContent).toBeTruthy();
    }
    const meters = all(node, 'meter').map(m => m.getAttribute('aria-label'));
    expect(meters).toEqual(['4 GiB of 16 GiB used', '88% busy']);
  });

  it('stops listening when it is closed', () => {
    sidebar.dispose();
    expect(() => model.connected(cluster())).not.toThrow();
  });
});
