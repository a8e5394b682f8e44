// A moment, for people.

import { grouped, seconds } from "./format.ts";
import type { Axis } from "./line-chart.ts";
import type { Memory } from "./memory.ts";

/** Where a moment is, for people: the peak by its name, others by event, time and step. */
export function momentInWords(memory: Memory, moment: number): string {
  const { head } = memory;
  const facts = [`after event ${grouped(moment)} of ${grouped(head.events)}`];
  const time = memory.timeOf(moment);
  const step = memory.stepOf(moment);
  if (time !== null) {
    facts.push(seconds(time, memory.timeError));
  }
  if (step !== null) {
    facts.push(`step ${grouped(step)}`);
  }
  const name = moment === head.peak.allocated.moment ? "at the allocated peak" : moment === head.peak.reserved.moment ? "at the reserved peak"
    : head.ooms.some((oom) => oom.moment === moment) ? "when memory ran out" : "";
  return name ? `${name} (${facts.join(", ")})` : facts.join(", ");
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
