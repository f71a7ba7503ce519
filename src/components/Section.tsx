/** A part of the panel that folds, by mouse and by keyboard. */
import * as React from 'react';

export interface ISectionProps {
  title: string;
  children: React.ReactNode;
}

export function Section(props: ISectionProps): JSX.Element {
  return (
    <details className="jp-NotebookOS-section" open>
      <summary>
        <h2>{props.title}</h2>
      </summary>
      {props.children}
    </details>
  );
}
