/** One kernel: its replicas, what holds it, what is not yet durable, and its latest cells. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import {
  describeStored,
  formatBytes,
  kernelState,
  kernelTitle
} from '../format';
import { describeMove } from '../moves';
import type { Kernel, Replica } from '../wire';
import { CellTable } from './CellTable';
import { Lazy } from './Lazy';
import { ReplicaTable } from './ReplicaTable';

/** What a user can do with a kernel. */
export interface IKernelActions {
  open: (kernel: Kernel) => void;
  interrupt: (kernelId: string) => void;
  restart: (kernel: Kernel) => void;
  move: (kernel: Kernel, replica: Replica) => void;
  goOn: (kernel: Kernel) => void;
  /** Has the replica run the next cell that it can; null leaves it to the scheduler. */
  prefer: (kernel: Kernel, replica: Replica | null) => void;
}

export interface IKernelCardProps {
  kernel: Kernel;
  actions: IKernelActions;
  trans: TranslationBundle;
}

export function KernelCard(props: IKernelCardProps): JSX.Element {
  const { kernel, trans } = props;
  const heading = React.useId();
  const title = kernelTitle(kernel, trans);
  return (
    <section
      className="jp-NotebookOS-card"
      aria-labelledby={heading}
      data-kernel={kernel.id}
    >
      <header className="jp-NotebookOS-cardHeader">
        <h3 id={heading} title={kernel.notebook_path || kernel.id}>
          {title}
        </h3>
        <span
          className={`jp-NotebookOS-state jp-mod-${kernel.state}`}
          data-state={kernel.state}
        >
          {kernelState(kernel.state, trans)}
        </span>
      </header>
      <Lazy>{() => <KernelBody title={title} {...props} />}</Lazy>
    </section>
  );
}

function KernelBody(props: IKernelCardProps & { title: string }): JSX.Element {
  const { kernel, actions, title, trans } = props;
  return (
    <>
      <p className="jp-NotebookOS-detail">
        {settings(kernel, trans)}
        {Boolean(kernel.store_bytes) &&
          ` · ${trans.__('%1 in the checkpoint store', formatBytes(kernel.store_bytes ?? 0))}`}
      </p>
      <KernelButtons {...props} />
      {kernel.majority_lost !== null && (
        <p className="jp-NotebookOS-notice jp-mod-warn" role="status">
          {kernel.majority_lost}
        </p>
      )}
      {kernel.unprotected && (
        <p className="jp-NotebookOS-notice jp-mod-warn" role="status">
          {trans.__(
            'Unprotected: it went on without most of its members, and gets its replicas back as hosts allow.'
          )}
        </p>
      )}
      <ReplicaTable
        title={title}
        replicas={kernel.replicas}
        onMove={
          kernel.migration === null
            ? replica => actions.move(kernel, replica)
            : undefined
        }
        preferred={kernel.preferred_replica}
        onPrefer={
          kernel.replicas.length > 1
            ? replica => actions.prefer(kernel, replica)
            : undefined
        }
        trans={trans}
      />
      {kernel.stored && (
        <p className="jp-NotebookOS-notice jp-mod-info" role="status">
          {describeStored(kernel.stored, trans)}
        </p>
      )}
      {kernel.migration && (
        <p className="jp-NotebookOS-notice jp-mod-info" role="status">
          {describeMove(kernel.migration, trans)}
        </p>
      )}
      {kernel.held.length > 0 && (
        <div className="jp-NotebookOS-notice jp-mod-warn">
          {trans.__(
            'Held to its executor by what cannot travel to another replica:'
          )}
          <dl className="jp-NotebookOS-held">
            {kernel.held.map(held => (
              <React.Fragment key={held.name}>
                <dt>
                  <code>{held.name}</code> ({held.type_name})
                </dt>
                <dd>{held.reason}</dd>
              </React.Fragment>
            ))}
          </dl>
        </div>
      )}
      {kernel.not_durable.length > 0 && (
        <p className="jp-NotebookOS-notice jp-mod-info">
          {trans.__('Not yet durable: %1', kernel.not_durable.join(', '))}
        </p>
      )}
      {kernel.cells.length > 0 && (
        <CellTable title={title} cells={kernel.cells} trans={trans} />
      )}
    </>
  );
}

function KernelButtons(
  props: IKernelCardProps & { title: string }
): JSX.Element {
  const { kernel, actions, title, trans } = props;
  const busy = kernel.state === 'busy' || kernel.state === 'queued';
  return (
    <p className="jp-NotebookOS-buttons">
      {kernel.notebook_path && (
        <button
          className="jp-NotebookOS-button"
          aria-label={trans.__('Open %1', title)}
          onClick={() => actions.open(kernel)}
        >
          {trans.__('Open')}
        </button>
      )}
      <button
        className="jp-NotebookOS-button"
        aria-label={trans.__('Interrupt %1', title)}
        disabled={!busy}
        onClick={() => actions.interrupt(kernel.id)}
      >
        {trans.__('Interrupt')}
      </button>
      <button
        className="jp-NotebookOS-button"
        aria-label={trans.__('Restart %1…', title)}
        onClick={() => actions.restart(kernel)}
      >
        {trans.__('Restart…')}
      </button>
      {kernel.majority_lost !== null && kernel.can_continue && (
        <button
          className="jp-NotebookOS-button"
          aria-label={trans.__('Let %1 go on unprotected…', title)}
          onClick={() => actions.goOn(kernel)}
        >
          {trans.__('Go on unprotected…')}
        </button>
      )}
    </p>
  );
}

function settings(kernel: Kernel, trans: TranslationBundle): string {
  const replicas = trans._n('%1 replica', '%1 replicas', kernel.replica_count);
  const gpus = trans._n(
    '%1 GPU per cell',
    '%1 GPUs per cell',
    kernel.gpus_per_cell
  );
  return kernel.next_replica_count === kernel.replica_count
    ? trans.__('%1, %2', replicas, gpus)
    : trans.__(
        '%1 (%2 as soon as hosts allow), %3',
        replicas,
        kernel.next_replica_count,
        gpus
      );
}
