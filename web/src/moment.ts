// A moment, for people.

import { grouped, seconds } from "./format.ts";
import type { Axis } from "./line-chart.ts";
import type { Memory } from "./memory.ts";
import { wordsOf } from "./words.ts";

/** Where a moment is, for people: the peak by its name, others by event, time, step and what the program named. */
export function momentInWords(memory: Memory, moment: number): string {
  const { head } = memory;
  const time = memory.timeOf(moment);
  // Of RAM only some events are there, and how many says nothing.
  const isCounted = head.ram === null || time === null;
  const facts = isCounted ? [`after event ${grouped(moment)} of ${grouped(head.events)}`] : [];
  const step = memory.stepOf(moment);
  const annotation = annotationInWords(memory, moment);
  if (time !== null) {
    facts.push(isCounted ? seconds(time, memory.timeError) : `at ${seconds(time, memory.timeError)}`);
  }
  if (step !== null) {
    facts.push(`step ${grouped(step)}`);
  }
  if (annotation !== null) {
    facts.push(annotation);
  }
  const name =
    moment === head.peak.allocated.moment
      ? wordsOf(head).heldPeak
      : moment === head.peak.reserved.moment
        ? wordsOf(head).takenPeak
        : head.ooms.some((oom) => oom.moment === moment)
          ? "when memory ran out"
          : "";
  return name ? `${name} (${facts.join(", ")})` : facts.join(", ");
}

/** What the program named that a moment lies in, the innermost. */
export function annotationInWords(memory: Memory, moment: number): string | null {
  const annotation = memory.annotationAt(moment);
  return annotation === null ? null : `${annotation.to === null ? "at" : "in"} “${annotation.name}”`;
}

/** How long it is from one moment to another, if that is known. */
export function durationInWords(memory: Memory, from: number, to: number): string | null {
  const [begin, end] = [memory.timeOf(from), memory.timeOf(to)];
  // Both may be off.
  return begin === null || end === null ? null : seconds(end - begin, 2 * memory.timeError);
}

/** An axis of moments for charts. */
export function eventAxis(memory: Memory, points: ArrayLike<number>): Axis {
  return { points, short: grouped, long: (moment) => momentInWords(memory, moment) };
}
