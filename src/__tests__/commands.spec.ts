import type { JupyterFrontEnd } from '@jupyterlab/application';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';

import { addCommands, ALL_COMMANDS, CommandIDs } from '../commands';
import type { CurrentNotebook } from '../widgets/currentNotebook';
import { cluster, FixedModel } from './samples';

const trans = nullTranslator.load('notebookos_ext');

describe('commands', () => {
  let model: FixedModel;
  let commands: CommandRegistry;
  let notebook: { name: string | null; kernel: unknown };

  beforeEach(() => {
    model = new FixedModel();
    commands = new CommandRegistry();
    notebook = { name: null, kernel: undefined };
    Object.assign(notebook, { changed: new Signal(notebook) });
    addCommands(
      { commands } as unknown as JupyterFrontEnd,
      model,
      notebook as unknown as CurrentNotebook,
      trans
    );
  });

  it('all have a label', () => {
    for (const id of ALL_COMMANDS) {
      expect(commands.label(id)).toBeTruthy();
    }
  });

  it('are enabled when there is something for them to act on', () => {
    const enabled = () => ALL_COMMANDS.filter(id => commands.isEnabled(id));
    const always = [CommandIDs.show, CommandIDs.refresh, CommandIDs.usage];
    expect(enabled()).toEqual(always);
    model.connected(cluster());
    notebook.name = 'train_digits.ipynb';
    notebook.kernel = model.state.cluster?.kernels[0];
    expect(enabled()).toEqual(ALL_COMMANDS);
    // Its replica is on its way already.
    notebook.kernel = model.state.cluster?.kernels[1];
    expect(commands.isEnabled(CommandIDs.migrate)).toBe(false);
  });

  it('act on what their arguments name', async () => {
    model.connected(cluster());
    notebook.kernel = model.state.cluster?.kernels[0];
    await commands.execute(CommandIDs.drain, { host: 'host-1' });
    await commands.execute(CommandIDs.use, { host: 'host-2' });
    await commands.execute(CommandIDs.migrate, { replica: 3 });
    expect(model.asked).toEqual([
      'drain host-1',
      'use host-2',
      'move 6f0d5a1e-2f0c-4c59-9c2c-3a1b7c0e9d11:3'
    ]);
  });
});
