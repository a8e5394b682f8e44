// When to draw: views in sight with the next frame, those out of sight when things are quiet, all of them at once for paper.

import { isPrinting } from "./paper.ts";

/** How long nothing must have been asked for before a view out of sight is drawn, in milliseconds. */
const QUIET = 200;
/** How close to the window counts as in sight. */
const NEAR = "150px";

/** A function that asks for `draw`: at once if `host` is in sight, else when it comes into sight or when things are quiet. */
export function whenSeen(host: Element, draw: () => void): () => void {
  let wanted = false;
  let seen = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const run = (): void => {
    if (wanted) {
      wanted = false;
      clearTimeout(timer);
      draw();
    }
  };
  new IntersectionObserver(
    (entries) => {
      seen = entries[entries.length - 1]?.isIntersecting ?? false;
      if (seen) {
        run();
      }
    },
    { rootMargin: NEAR },
  ).observe(host);
  // What is printed must be true of the whole page.
  addEventListener("beforeprint", run);
  return () => {
    if (seen && wanted && !isPrinting()) {
      return;
    }
    wanted = true;
    clearTimeout(timer);
    if (isPrinting()) {
      run();
    } else if (seen) {
      requestAnimationFrame(run);
    } else {
      timer = setTimeout(run, QUIET);
    }
  };
}
