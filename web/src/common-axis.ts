// One axis for recordings of unequal length: the same step of each stands at the same place, or the same second where there are
// no steps. Only where neither is known is it a share of the events, which says nothing of when.

import { grouped, timeWithin } from "./format.ts";
import type { Axis, Series } from "./line-chart.ts";
import type { Memory } from "./memory.ts";

export interface CommonAxis extends Axis {
  /** What it goes by, for a heading. */
  by: string;
  /** The moment of a recording at a value of the axis; null: it has ended before. */
  momentAt(memory: Memory, value: number): number | null;
}

/** The axis that all of them have, in so many points. */
export function commonAxis(memories: readonly Memory[], points: number): CommonAxis {
  if (memories.every(({ head }) => head.steps !== null)) {
    // From 0 to 1 is what comes before the first step.
    const most = Math.max(...memories.map(({ head }) => head.steps!.begins.length + 1));
    return {
      by: "by step",
      points: spread(most, points),
      short: (value) => (Number.isInteger(value) ? grouped(value) : ""),
      long: (value) => (value < 1 ? "before the first step" : `step ${grouped(Math.floor(value))}`),
      momentAt: momentOfStep,
    };
  }
  const spans = memories.map((memory) => memory.timeOf(memory.head.events));
  if (spans.every((span) => span !== null)) {
    const most = Math.max(...spans);
    return {
      by: "by time",
      points: spread(most, points),
      short: (value) => timeWithin(value, most),
      long: (value) => `${timeWithin(value, most)} after the first event`,
      momentAt: momentOfTime,
    };
  }
  return {
    by: "by share of their events",
    points: spread(1, points),
    short: (value) => `${Math.round(value * 100)} %`,
    long: (value) => `${Math.round(value * 100)} % of the events`,
    momentAt: (memory, value) => Math.floor(value * memory.head.events),
  };
}

/** The most that a recording has between each point of the axis and the next. */
export function along(axis: CommonAxis, memory: Memory): Record<"allocated" | "reserved", Series["values"]> {
  // Finer than the axis: a step may be short beside what comes before it.
  const columns = 8 * axis.points.length;
  const fine = memory.timeline("kind", 0, memory.head.events, columns);
  const places = Array.from(axis.points, (value) => axis.momentAt(memory, value));
  const column = (moment: number): number => {
    const { starts } = fine;
    let [low, high] = [0, starts.length];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      [low, high] = starts[middle]! <= moment ? [middle, high] : [low, middle];
    }
    return low;
  };
  const most = (values: Float64Array): (number | null)[] =>
    places.map((moment, index) => {
      if (moment === null) {
        return null;
      }
      const next = places[index + 1] ?? memory.head.events;
      const [from, to] = [column(moment), column(next)];
      let found = values[from]!;
      for (let at = from + 1; at < to; at++) {
        found = Math.max(found, values[at]!);
      }
      return found;
    });
  return { allocated: most(fine.allocated), reserved: most(fine.reserved) };
}

function spread(most: number, points: number): number[] {
  return Array.from({ length: points }, (_, index) => (index * most) / (points - 1));
}

function momentOfStep({ head }: Memory, value: number): number | null {
  const { begins, end } = head.steps!;
  const marks = [0, ...begins, end];
  const step = Math.floor(value);
  if (value >= marks.length - 1) {
    return value === marks.length - 1 ? end : null;
  }
  return Math.floor(marks[step]! + (value - step) * (marks[step + 1]! - marks[step]!));
}

function momentOfTime(memory: Memory, value: number): number | null {
  const { events } = memory.head;
  if (value > memory.timeOf(events)!) {
    return null;
  }
  let [low, high] = [0, events];
  while (low < high) {
    const middle = (low + high) >> 1;
    [low, high] = memory.timeOf(middle)! < value ? [middle + 1, high] : [low, middle];
  }
  return low;
}
