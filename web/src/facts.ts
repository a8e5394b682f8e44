// What the timeline says of a moment.

import { bytes, bytesWithin, grouped, timeWithin } from "./format.ts";
import type { Memory } from "./memory.ts";
import { annotationInWords } from "./moment.ts";
import { wordsOf } from "./words.ts";

/** When it is: after which event, at what time, in which step, in what the program named. */
export function whenOf(memory: Memory, moment: number, time = memory.timeOf(moment)): string[] {
  const step = memory.stepOf(moment);
  const annotation = annotationInWords(memory, moment);
  // Of RAM only some events are there, and how many says nothing.
  const isCounted = memory.head.ram === null || time === null;
  const event = moment === 0 ? "Before the first event" : `After event ${grouped(moment)}`;
  return [
    ...(isCounted ? [event] : []),
    ...(time === null ? [] : [timeWithin(time, memory.head.seconds ?? 0, memory.timeError)]),
    ...(step === null ? [] : [`step ${grouped(step)}`]),
    ...(annotation === null ? [] : [annotation]),
  ];
}

/** The same, and what is held and taken. `time` is the one that was chosen, where that is not the moment's own. */
export function factsOf(memory: Memory, moment: number, time = memory.timeOf(moment)): string[] {
  const [first, ...rest] = whenOf(memory, moment, time);
  const words = wordsOf(memory.head);
  const files = memory.filesAt(moment);
  const peak = moment === memory.head.peak.allocated.moment ? " (peak)" : "";
  return [
    first + peak,
    ...rest,
    `${bytesWithin(memory.allocatedAt(moment), memory.errorAt(moment))} ${words.held}`,
    `${bytes(memory.reservedAt(moment))} ${words.taken}`,
    ...(files > 0 ? [`${bytes(files)} in pages of files`] : []),
  ];
}
