// Arithmetic of the timeline's view: which positions are shown after a zoom or a move. All results lie within the recording.
// A position is a moment where the timeline goes by events, and a microsecond where it goes by time.

import type { Scale } from "./scale.ts";
import { countUpTo } from "./sorting.ts";

export interface Range {
  from: number;
  to: number;
}

/** As few moments as a view may have. */
const LEAST = 8;

/** The view with `factor` times as many moments; `at` stays where it is. */
export function zoomed({ from, to }: Range, at: number, factor: number, events: number): Range {
  const width = to - from + 1;
  const all = events + 1;
  const next = Math.min(all, Math.max(Math.min(LEAST, all), Math.round(width * factor)));
  const start = Math.round(at - ((at - from) / width) * next);
  return placed(start, next, events);
}

/** The view moved by so many moments. */
export function moved({ from, to }: Range, by: number, events: number): Range {
  return placed(from + Math.round(by), to - from + 1, events);
}

/** The view, moved if it must be to have `moment` in it: just as far where it is close by, so that a view follows; else to its middle. */
export function including({ from, to }: Range, moment: number, events: number): Range {
  const by = moment < from ? moment - from : Math.max(0, moment - to);
  const isClose = Math.abs(by) <= (to - from + 1) / 2;
  return moved({ from, to }, isClose ? by : moment - (from + to) / 2, events);
}

/** The moment that is shown so many columns away from `moment`; out of view, as far away as so many columns are wide. */
export function columnsAway(
  view: Range & { starts: ArrayLike<number>; tops: ArrayLike<number> },
  scale: Pick<Scale, "of" | "at">,
  moment: number,
  by: number,
): number {
  const { from, to, starts, tops } = view;
  const position = scale.of(moment);
  const isOutside = position < from || position > to;
  let column = countUpTo(starts, position) - 1 + by;
  // By time, nothing may have happened in the columns between.
  while (!isOutside && tops[column] === moment) {
    column += Math.sign(by);
  }
  const shown = isOutside ? undefined : tops[column];
  const width = Math.max(1, (to - from + 1) / starts.length);
  const beyond = scale.at(position + Math.round(by * width));
  return shown ?? (beyond === moment ? moment + Math.sign(by) : beyond);
}

/** The view of a stretch, with a little of what is around it. */
export function around(from: number, to: number, events: number): Range {
  const margin = Math.max(1, Math.round((to - from) * 0.03));
  const start = Math.max(0, Math.floor(from) - margin);
  return placed(start, Math.max(LEAST, Math.min(events, Math.ceil(to) + margin) - start + 1), events);
}

function placed(start: number, width: number, events: number): Range {
  const kept = Math.min(width, events + 1);
  const from = Math.max(0, Math.min(start, events + 1 - kept));
  return { from, to: from + kept - 1 };
}
