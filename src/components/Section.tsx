/** A part of the panel that folds, by mouse and by keyboard. */
import * as React from 'react';

export interface ISectionProps {
  title: string;
  /** By which others find it, in `data-section`. */
  name?: string;
  /** Whether it is folded at first; its contents exist only while it is open. */
  folded?: boolean;
  children: React.ReactNode;
}

export function Section(props: ISectionProps): JSX.Element {
  const [open, setOpen] = React.useState(!props.folded);
  return (
    <details
      className="jp-NotebookOS-section"
      data-section={props.name}
      open={open}
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <summary>
        <h2>{props.title}</h2>
      </summary>
      {(open || !props.folded) && props.children}
    </details>
  );
}
