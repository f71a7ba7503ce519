/** The icon of the panel: replicas behind a prompt. */
import { LabIcon } from '@jupyterlab/ui-components';

const svgstr = `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">
  <g class="jp-icon3 jp-icon-selectable" fill="none" stroke="#616161" stroke-width="1.8" stroke-linejoin="round">
    <path d="M9 6V3.5h11.5V15H18"/>
    <rect x="3.5" y="8" width="12.5" height="12.5"/>
    <path d="M7 12l3 2.4L7 16.8" stroke-linecap="round"/>
  </g>
</svg>`;

export const replicasIcon = new LabIcon({
  name: 'notebookos-ext:replicas',
  svgstr
});
