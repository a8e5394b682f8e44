// What the program named: a stretch of its events, or a single moment. There may be hundreds of thousands.

import { countUpTo, countWhile } from "./sorting.ts";

export interface Annotation {
  name: string;
  /** The moment before its first event. */
  from: number;
  /** The moment after its last event; null: a mark. */
  to: number | null;
}

/** By their beginnings; of those that begin together, the one that holds the others first. */
export function inOrder(annotations: Annotation[]): Annotation[] {
  return annotations.sort((a, b) => a.from - b.from || endOf(b) - endOf(a));
}

function endOf({ from, to }: Annotation): number {
  return to ?? from;
}

/** The moment that stands for an annotation: the one after its first event, or where its mark is. */
function firstMoment({ from, to }: Annotation): number {
  return to === null || to === from ? from : from + 1;
}

/** The mark at `moment`, or the innermost annotation that it lies in. They must be in order. */
export function annotationAt(annotations: readonly Annotation[], moment: number): Annotation | null {
  let inner: Annotation | null = null;
  // Backwards, the first that has not ended is the innermost.
  for (let at = begunBy(annotations, moment) - 1; at >= 0; at--) {
    const one = annotations[at];
    if (one.to === null && one.from === moment) {
      return one;
    }
    if (inner === null && one.to !== null && one.from < moment && moment <= one.to) {
      inner = one;
    }
    if (inner !== null && one.from < moment) {
      return inner;
    }
  }
  return inner;
}

/** How many have begun by `moment`. They must be in order. */
export function begunBy(annotations: readonly { from: number }[], moment: number): number {
  return countWhile(annotations.length, (row) => annotations[row].from <= moment);
}

/** The moments that stand for annotations, ascending. */
export function firstMoments(annotations: readonly Annotation[]): Float64Array {
  return Float64Array.from(annotations, firstMoment).sort();
}

/** Of ascending moments, the next one after `moment`, or the last one before it; `moment` itself if there is none. */
export function beside(moments: ArrayLike<number>, moment: number, by: 1 | -1): number {
  const passed = countUpTo(moments, by > 0 ? moment : moment - 1);
  return moments[by > 0 ? passed : passed - 1] ?? moment;
}
