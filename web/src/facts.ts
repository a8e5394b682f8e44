// What the timeline says of a moment.

import { bytes, grouped, timeWithin } from "./format.ts";
import type { Memory } from "./memory.ts";
import { annotationInWords } from "./moment.ts";

/** When it is: after which event, at what time, in which step, in what the program named. */
export function whenOf(memory: Memory, moment: number): string[] {
  const time = memory.timeOf(moment);
  const step = memory.stepOf(moment);
  const annotation = annotationInWords(memory, moment);
  return [
    moment === 0 ? "Before the first event" : `After event ${grouped(moment)}`,
    ...(time === null ? [] : [timeWithin(time, memory.head.seconds ?? 0, memory.timeError)]),
    ...(step === null ? [] : [`step ${grouped(step)}`]),
    ...(annotation === null ? [] : [annotation]),
  ];
}

/** The same, and what is allocated and reserved. */
export function factsOf(memory: Memory, moment: number): string[] {
  const [first, ...rest] = whenOf(memory, moment);
  const peak = moment === memory.head.peak.allocated.moment ? " (peak)" : "";
  return [
    first + peak,
    ...rest,
    `${bytes(memory.allocatedAt(moment))} allocated`,
    `${bytes(memory.reservedAt(moment))} reserved`,
  ];
}
