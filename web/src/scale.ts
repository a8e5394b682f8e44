// Where moments are along the timeline: by events, or by time. A view is a stretch of positions.
//
// By events, a position is a moment. By time, it is a microsecond since the first event of all that is drawn together, and a moment
// is where the event that made it was. No DOM.

import type { SubjectHead } from "./data.ts";
import { countWhile } from "./sorting.ts";

export interface Scale {
  by: "events" | "time";
  /** The last position. */
  end: number;
  /** The positions between which the recording is. */
  first: number;
  last: number;
  /** The position of a moment. */
  of(moment: number): number;
  /** The moment at a position: before the first, 0. */
  at(position: number): number;
}

/** What a scale needs of a recording. */
export interface Timed {
  head: SubjectHead;
  timeOf(moment: number): number | null;
}

const MICROS = 1e6;
/** Positions in a view are whole, times between corners are not. */
const ROUNDING = 1e-3;

export function eventScale({ head: { events } }: Timed): Scale {
  return { by: "events", end: events, first: 0, last: events, of: (moment) => moment, at: (position) => position };
}

/** The scale to `end`, which is that of what is drawn together. */
export function timeScale(memory: Timed, end: number): Scale {
  const { events } = memory.head;
  const [first, last] = spanOf(memory.head);
  const of = (moment: number) => (memory.timeOf(moment) ?? 0) * MICROS;
  return {
    by: "time",
    end,
    first,
    last,
    of,
    at: (position) => Math.max(0, countWhile(events + 1, (moment) => of(moment) <= position + ROUNDING) - 1),
  };
}

/** From when to when a subject was recorded, in microseconds since the first event of what is drawn with it. */
export function spanOf(head: SubjectHead): [first: number, last: number] {
  const first = head.beside?.offset ?? 0;
  return [first, first + Math.ceil((head.seconds ?? 0) * MICROS)];
}

/** Whether a subject can be shown over time: RAM always is, a GPU's memory beside it. */
export function hasTime(head: SubjectHead): boolean {
  return head.times !== null && (head.ram !== null || (head.beside?.offset ?? null) !== null);
}
