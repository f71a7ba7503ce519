/** The panel: this notebook, GPUs, kernels, waiting. */
import type { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import { SidePanel } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Banner } from '../components/Banner';
import { HostCard } from '../components/HostCard';
import { KernelCard } from '../components/KernelCard';
import { SettingsForm } from '../components/SettingsForm';
import { WaitingList } from '../components/WaitingList';
import { Warnings } from '../components/Warnings';
import { replicasIcon } from '../icons';
import type { IClusterModel } from '../tokens';
import type { CurrentNotebook } from './currentNotebook';
import { Section, SectionView } from './section';

export const SIDEBAR_ID = 'notebookos-ext-sidebar';

export class Sidebar extends SidePanel {
  constructor(options: Sidebar.IOptions) {
    super({ translator: options.translator });
    const { model, notebook } = options;
    const trans = options.translator.load('notebookos_ext');
    this.id = SIDEBAR_ID;
    this.addClass('jp-NotebookOS');
    this.title.icon = replicasIcon;
    this.title.caption = trans.__('NotebookOS: GPUs, kernels and replicas');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('NotebookOS'));
    this.header.addWidget(new Section(model, topView(trans)));
    this.addWidget(new Section(model, gpusView(trans)));
    this.addWidget(new Section(model, kernelsView(trans)));
    this.addWidget(new Section(model, waitingView(trans)));
    if (notebook) {
      this.addWidget(
        new Section(model, notebookView(notebook, trans), notebook.changed)
      );
    }
  }
}

export namespace Sidebar {
  export interface IOptions {
    model: IClusterModel;
    /** The notebook in front; without notebooks there are no settings to show. */
    notebook?: CurrentNotebook;
    translator: ITranslator;
  }
}

function topView(trans: TranslationBundle): SectionView {
  return {
    title: () => '',
    render: ({ connection, cluster }) => (
      <>
        <Banner connection={connection} trans={trans} />
        {cluster && (
          <>
            <p className="jp-NotebookOS-detail">
              {cluster.simulated
                ? trans.__('Simulated GPUs · %1 policy', cluster.policy)
                : trans.__('%1 policy', cluster.policy)}
            </p>
            <Warnings
              warnings={cluster.warnings}
              kernels={cluster.kernels}
              trans={trans}
            />
          </>
        )}
      </>
    )
  };
}

function gpusView(trans: TranslationBundle): SectionView {
  return {
    title: ({ cluster }) =>
      cluster
        ? trans.__('GPUs on %1 hosts', cluster.hosts.length)
        : trans.__('GPUs'),
    render: ({ cluster }) =>
      cluster && (
        <>
          {!cluster.hosts.length && (
            <p className="jp-NotebookOS-empty">
              {trans.__('No host has joined yet.')}
            </p>
          )}
          {cluster.hosts.map(host => (
            <HostCard
              key={host.id}
              host={host}
              kernels={cluster.kernels}
              trans={trans}
            />
          ))}
        </>
      )
  };
}

function kernelsView(trans: TranslationBundle): SectionView {
  return {
    title: ({ cluster }) =>
      cluster
        ? trans.__('Kernels (%1)', cluster.kernels.length)
        : trans.__('Kernels'),
    render: ({ cluster }) =>
      cluster && (
        <>
          {!cluster.kernels.length && (
            <p className="jp-NotebookOS-empty">
              {trans.__(
                'No kernel runs. Open a notebook with "Python 3 (NotebookOS)".'
              )}
            </p>
          )}
          {cluster.kernels.map(kernel => (
            <KernelCard key={kernel.id} kernel={kernel} trans={trans} />
          ))}
        </>
      )
  };
}

function waitingView(trans: TranslationBundle): SectionView {
  return {
    title: ({ cluster }) =>
      cluster
        ? trans.__('Waiting (%1)', cluster.waiting.length)
        : trans.__('Waiting'),
    render: ({ cluster }) =>
      cluster && (
        <WaitingList waiting={cluster.waiting} at={cluster.at} trans={trans} />
      )
  };
}

function notebookView(
  notebook: CurrentNotebook,
  trans: TranslationBundle
): SectionView {
  return {
    title: () => trans.__('This notebook'),
    render: () => (
      <SettingsForm
        notebook={notebook.name}
        settings={notebook.settings}
        replicated={notebook.kernel !== undefined}
        onChange={change => notebook.change(change)}
        trans={trans}
      />
    )
  };
}
