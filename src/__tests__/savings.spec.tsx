import { framePromise } from '@jupyterlab/testing';
import { nullTranslator } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';
import * as React from 'react';

import { steps } from '../components/GpuChart';
import { Savings } from '../components/Savings';
import type { Timeline, Usage } from '../wire';
import { timeline, usage } from './samples';

/** Tuesday, some time after midnight, in seconds. */
const NOW = new Date(2026, 10, 24, 13, 5).getTime() / 1000;

describe('Savings', () => {
  let widget: Widget;
  let asked: number[];

  afterEach(() => {
    widget.dispose();
  });

  const now = () => NOW;

  /** What is there once React has drawn, asked, and drawn the answer. */
  async function drawn(): Promise<HTMLElement> {
    for (let frame = 0; frame < 4; frame += 1) {
      await framePromise();
    }
    return widget.node;
  }

  async function show(answer: () => Promise<Usage>): Promise<HTMLElement> {
    asked = [];
    const load = async (since: number): Promise<[Usage, Timeline]> => {
      asked.push(since);
      return [await answer(), timeline()];
    };
    const trans = nullTranslator.load('');
    widget = ReactWidget.create(
      <Savings load={load} now={now} trans={trans} />
    );
    Widget.attach(widget, document.body);
    return drawn();
  }

  it('shows what was held, reserved and saved, and how long cells waited', async () => {
    const node = await show(async () => usage());
    const words = Array.from(node.querySelectorAll('dd')).map(
      each => each.textContent
    );
    expect(words).toEqual([
      '8.0 GPU-h',
      '1.5 GPU-h',
      '6.5 GPU-h (81%)',
      '6 of 8 (75%)',
      'half within 12 ms, 99% within 5.2 s'
    ]);
    const rows = Array.from(node.querySelectorAll('tbody th'));
    expect(rows.map(each => each.textContent)).toEqual([
      'up to 100 ms',
      'up to 1.0 s',
      'up to 10.0 s',
      'up to 1 min 0 s',
      'up to 10 min 0 s',
      'longer',
      'train_digits.ipynb',
      '(no notebook)'
    ]);
    const waits = node.querySelectorAll('.jp-NotebookOS-waitTimes td');
    expect(Array.from(waits).map(each => each.textContent)).toEqual([
      '5',
      '1',
      '2',
      '0',
      '0',
      '0'
    ]);
  });

  it('shows the GPUs that were bound and that were there, over time', async () => {
    const node = await show(async () => usage());
    expect(node.querySelector('figcaption')?.textContent).toBe(
      'GPUs over time: on average 2.0 bound of 8.4 provisioned; at most 6 bound at once'
    );
    const parts = (selector: string) =>
      (node.querySelector(selector)?.getAttribute('d') ?? '').split('z')
        .length - 1;
    // One of six was not on record, and in one nothing was bound.
    expect(parts('path.jp-mod-provisioned')).toBe(5);
    expect(parts('path.jp-mod-bound')).toBe(4);
    expect(steps([null, 2, 4], 4)).toBe(
      'M100 60v-30h100v30zM200 60v-60h100v60z'
    );
  });

  it('begins with midnight and asks again for another period', async () => {
    const node = await show(async () => usage());
    const midnight = new Date(2026, 10, 24).getTime() / 1000;
    expect(asked).toEqual([midnight]);
    const select = node.querySelector('select') as HTMLSelectElement;
    for (const period of ['week', 'all']) {
      select.value = period;
      select.dispatchEvent(new Event('change', { bubbles: true }));
      await drawn();
    }
    expect(asked).toEqual([midnight, NOW - 7 * 86400, 0]);
  });

  it('says that nothing ran', async () => {
    const nothing = usage();
    nothing.total.cells = 0;
    nothing.total.gpu_seconds_reserved = 0;
    const node = await show(async () => nothing);
    expect(node.textContent).toContain('No cell has run in this period.');
    expect(node.querySelector('table')).toBeNull();
  });

  it('says why the account cannot be read', async () => {
    const node = await show(async () => {
      throw new Error('the disk is full');
    });
    expect(node.querySelector('[role=status]')?.textContent).toBe(
      'The account cannot be read: the disk is full'
    );
  });
});
