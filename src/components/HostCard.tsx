/** One host: its devices, and who holds each. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatBytes, formatTime, kernelTitle, replicaNumber } from '../format';
import type { Device, Host, Kernel } from '../wire';
import { Lazy } from './Lazy';

export interface IHostCardProps {
  host: Host;
  kernels: Kernel[];
  /** Empties the host and, with `release`, gives it back then; with false uses it again. */
  onDrain: (host: Host, drain: boolean, release?: boolean) => void;
  trans: TranslationBundle;
}

export function HostCard(props: IHostCardProps): JSX.Element {
  const { host, trans } = props;
  const heading = React.useId();
  const free = host.devices.filter(device => !device.binding).length;
  return (
    <section
      className="jp-NotebookOS-card"
      aria-labelledby={heading}
      data-host={host.id}
    >
      <header className="jp-NotebookOS-cardHeader">
        <h3 id={heading}>{host.id}</h3>
        <span
          className={`jp-NotebookOS-state jp-mod-${host.state}`}
          data-state={host.state}
        >
          {host.state === 'lost'
            ? trans.__('lost')
            : host.leaving
              ? trans.__('being removed')
              : host.draining
                ? trans.__('draining')
                : trans.__('%1 of %2 GPUs free', free, host.devices.length)}
        </span>
      </header>
      <Lazy>{() => <HostBody {...props} />}</Lazy>
    </section>
  );
}

function HostBody(props: IHostCardProps): JSX.Element {
  const { host, kernels, onDrain, trans } = props;
  return (
    <>
      <p className="jp-NotebookOS-detail">
        {trans._n('%1 replica', '%1 replicas', host.replica_count)}
        {' · '}
        {trans.__('on %1, process %2', host.machine, host.pid)}{' '}
        <button
          className="jp-NotebookOS-button"
          aria-label={
            host.draining
              ? trans.__('Use %1 again', host.id)
              : trans.__('Drain %1: move its replicas away', host.id)
          }
          onClick={() => onDrain(host, !host.draining)}
        >
          {host.draining ? trans.__('Use again') : trans.__('Drain')}
        </button>{' '}
        {!host.leaving && host.state === 'ready' && (
          <button
            className="jp-NotebookOS-button"
            aria-label={trans.__(
              'Remove %1 once its replicas have moved away',
              host.id
            )}
            onClick={() => onDrain(host, true, true)}
          >
            {trans.__('Remove')}
          </button>
        )}
      </p>
      {host.devices.length > 0 && (
        <table className="jp-NotebookOS-table">
          <caption className="jp-NotebookOS-srOnly">
            {trans.__('GPUs of %1', host.id)}
          </caption>
          <thead className="jp-NotebookOS-srOnly">
            <tr>
              <th scope="col">{trans.__('GPU')}</th>
              <th scope="col">{trans.__('Memory')}</th>
              <th scope="col">{trans.__('Held by')}</th>
            </tr>
          </thead>
          <tbody>
            {host.devices.map(device => (
              <DeviceRow
                key={device.id}
                device={device}
                kernels={kernels}
                trans={trans}
              />
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

function DeviceRow(props: {
  device: Device;
  kernels: Kernel[];
  trans: TranslationBundle;
}): JSX.Element {
  const { device, kernels, trans } = props;
  const simulated = device.kind === 'simulated';
  const shared = device.shared_with.length
    ? trans.__('One device, also listed by %1', device.shared_with.join(', '))
    : '';
  return (
    <tr
      data-device={device.index}
      data-held={device.binding !== null}
      className={device.binding ? 'jp-mod-held' : undefined}
    >
      <th
        scope="row"
        className="jp-NotebookOS-nowrap"
        title={[device.name, shared].filter(Boolean).join('\n')}
      >
        {trans.__('GPU %1', device.index)}
        {simulated && (
          <span className="jp-NotebookOS-tag">{trans.__('simulated')}</span>
        )}
        {shared && (
          <span className="jp-NotebookOS-tag" aria-label={shared}>
            {trans.__('shared')}
          </span>
        )}
      </th>
      <td>{memory(device, trans)}</td>
      <td>
        {holder(device, kernels, trans)}
        {device.binding && (
          <span className="jp-NotebookOS-detail">
            {trans.__('since %1', formatTime(device.binding.since))}
          </span>
        )}
      </td>
    </tr>
  );
}

function memory(device: Device, trans: TranslationBundle): JSX.Element {
  const total = formatBytes(device.memory_bytes);
  if (device.memory_used_bytes === null) {
    return <>{total}</>;
  }
  const used = formatBytes(device.memory_used_bytes);
  const words = trans.__('%1 of %2 used', used, total);
  return (
    <>
      <meter
        min={0}
        max={device.memory_bytes}
        value={device.memory_used_bytes}
        aria-label={words}
        title={words}
      />
      <span className="jp-NotebookOS-detail">{words}</span>
      <Utilization device={device} trans={trans} />
      <span className="jp-NotebookOS-detail">{climate(device, trans)}</span>
    </>
  );
}

function Utilization(props: {
  device: Device;
  trans: TranslationBundle;
}): JSX.Element | null {
  const percent = props.device.utilization_percent;
  if (percent === null) {
    return null;
  }
  const words = props.trans.__('%1% busy', Math.round(percent));
  return (
    <>
      <meter
        min={0}
        max={100}
        value={percent}
        aria-label={words}
        title={words}
      />
      <span className="jp-NotebookOS-detail">{words}</span>
    </>
  );
}

/** Temperature and power, where the device tells them. */
function climate(device: Device, trans: TranslationBundle): string {
  const { temperature_c, power_w } = device;
  const parts = [
    temperature_c === null ? '' : trans.__('%1 °C', Math.round(temperature_c)),
    power_w === null ? '' : trans.__('%1 W', Math.round(power_w))
  ];
  return parts.filter(Boolean).join(', ');
}

function holder(
  device: Device,
  kernels: Kernel[],
  trans: TranslationBundle
): string {
  const { binding } = device;
  if (!binding) {
    return trans.__('free');
  }
  const kernel = kernels.find(k => k.id === binding.kernel_id) ?? {
    id: binding.kernel_id,
    notebook_path: ''
  };
  const title = kernelTitle(kernel, trans);
  const replica = replicaNumber(binding.replica_id);
  return binding.releasing
    ? trans.__('%1, replica %2 (releasing)', title, replica)
    : trans.__('%1, replica %2', title, replica);
}
