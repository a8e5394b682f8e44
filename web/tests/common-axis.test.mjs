// Two recordings of unequal length on one axis.

import assert from "node:assert/strict";
import { test } from "node:test";
import { along, commonAxis } from "../src/common-axis.ts";
import { Memory } from "../src/memory.ts";
import { NEVER, subject } from "./encode.mjs";

/** A recording of so many steps of two events: a block of the step's size is taken and freed. */
function run(sizes, { steps = true, seconds = null } = {}) {
  const events = 2 + 2 * sizes.length;
  const { page, columns } = subject({
    events,
    allocations: [
      { born: 1, freed: NEVER, size: 10 },
      ...sizes.map((size, step) => ({ born: 3 + 2 * step, freed: 4 + 2 * step, size })),
    ],
    times:
      seconds === null
        ? null
        : [
            [0, 0],
            [events - 1, seconds * 1e6],
          ],
    head: {
      steps: steps
        ? { begins: sizes.map((_, step) => 2 + 2 * step), end: events, partial: false, repeated: 0, peaks: [] }
        : null,
      peak: {},
      start: { allocated: 0 },
      seconds,
    },
  });
  return new Memory(page, 0, columns);
}

test("the same step stands at the same place, however many there are", () => {
  const [short, long] = [run([100, 200]), run([100, 200, 300, 400])];
  const axis = commonAxis([short, long], 6);
  assert.equal(axis.by, "by step");
  assert.deepEqual([...axis.points], [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(
    [...axis.points].map((value) => axis.long(value)),
    ["before the first step", "step 1", "step 2", "step 3", "step 4", "step 5"],
  );
  assert.deepEqual(along(axis, short).allocated.slice(0, 3), [10, 110, 210]);
  assert.deepEqual(along(axis, long).allocated.slice(0, 5), [10, 110, 210, 310, 410]);
  // It has ended, and is not drawn on.
  assert.deepEqual(along(axis, short).allocated.slice(4), [null, null]);
});

test("without steps it goes by time, and without times by events", () => {
  const [short, long] = [run([100], { steps: false, seconds: 1 }), run([100], { steps: false, seconds: 3 })];
  const axis = commonAxis([short, long], 4);
  assert.equal(axis.by, "by time");
  assert.deepEqual([...axis.points], [0, 1, 2, 3]);
  assert.deepEqual(along(axis, short).allocated.slice(2), [null, null]);
  assert.equal(axis.momentAt(long, 3), long.head.events);
  const none = commonAxis([run([100], { steps: false }), long], 3);
  assert.equal(none.by, "by share of their events");
  assert.equal(none.long(0.5), "50 % of the events");
});
