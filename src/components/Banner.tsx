/** How the panel stands with the server, in a sentence; nothing while all is well. */
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatTime } from '../format';
import type { Connection } from '../reduce';

export interface IBannerProps {
  connection: Connection;
  trans: TranslationBundle;
}

export function Banner(props: IBannerProps): JSX.Element {
  const content = describe(props.connection, props.trans);
  // The element stays while it is empty: screen readers announce changes of a region they know.
  return (
    <div role="status" className="jp-NotebookOS-banner">
      {content && (
        <p className={`jp-NotebookOS-notice jp-mod-${content.tone}`}>
          {content.text}
          {content.hint && (
            <span className="jp-NotebookOS-hint"> {content.hint}</span>
          )}
        </p>
      )}
    </div>
  );
}

function describe(
  connection: Connection,
  trans: TranslationBundle
): { tone: 'info' | 'warn' | 'error'; text: string; hint?: string } | null {
  switch (connection.kind) {
    case 'connected':
      return null;
    case 'loading':
      return { tone: 'info', text: trans.__('Asking the server…') };
    case 'missing':
      return {
        tone: 'warn',
        text: trans.__('This server has no NotebookOS extension.'),
        hint: trans.__(
          'Enable it with "jupyter server extension enable notebookos_ext" and restart the server.'
        )
      };
    case 'disconnected':
      return {
        tone: 'warn',
        text: trans.__(
          'Disconnected since %1. What you see may be out of date; trying again.',
          formatTime(connection.since)
        )
      };
    case 'failed':
      return {
        tone: 'error',
        text:
          connection.message ||
          trans.__('The server answered with status %1.', connection.status),
        hint: connection.hint
      };
    case 'mismatched':
      return {
        tone: 'error',
        text: trans.__('The server answered something unexpected.'),
        hint: trans.__(
          'Reload the page: server and browser may be of different versions (%1).',
          connection.message
        )
      };
  }
}
