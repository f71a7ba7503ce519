/**
 * A part of a long list that is drawn only near what the user sees.
 *
 * Each part's heading is always there, to be found and read; what is below it costs nothing until it
 * comes near, and keeps its height after that.
 */
import * as React from 'react';

/** How far outside of the visible part something is drawn already. */
const MARGIN = '400px';
/** Of parts that nobody has seen yet; about what a usual one has. */
const GUESS_PX = 160;

export interface ILazyProps {
  children: () => React.ReactNode;
}

export function Lazy(props: ILazyProps): JSX.Element {
  const place = React.useRef<HTMLDivElement>(null);
  const height = React.useRef(GUESS_PX);
  // Without an observer, as in old browsers, everything is drawn.
  const [near, setNear] = React.useState(
    typeof IntersectionObserver === 'undefined'
  );
  React.useEffect(() => {
    const node = place.current;
    if (!node || typeof IntersectionObserver === 'undefined') {
      return;
    }
    const observer = new IntersectionObserver(
      entries => {
        const entry = entries[entries.length - 1];
        if (!entry.isIntersecting && entry.boundingClientRect.height) {
          height.current = entry.boundingClientRect.height;
        }
        // What has the keyboard's focus must not go from under it.
        const focused = node.contains(document.activeElement);
        setNear(entry.isIntersecting || focused);
      },
      { rootMargin: MARGIN }
    );
    observer.observe(node);
    return () => observer.disconnect();
  }, []);
  return (
    <div ref={place} style={near ? undefined : { height: height.current }}>
      {near && props.children()}
    </div>
  );
}
