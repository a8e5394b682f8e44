// Moments along the time, and what the kernel counted.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Counts } from "../src/counts.ts";
import { Memory } from "../src/memory.ts";
import { eventScale, hasTime, timeScale } from "../src/scale.ts";
import { NEVER, subject, Writer } from "./encode.mjs";

/** RAM of a program that begins a second after the GPU's: blocks come at 1, 1.5 and 3 s, the first goes at 2 s. */
function ram() {
  const counted = new Writer();
  for (const [micros, own, files] of [
    [0, 10, 5],
    [600_000, 300, 0],
    [1_300_000, -150, 1],
  ]) {
    counted.unsigned(micros).signed(own).signed(files);
  }
  const { page, columns } = subject({
    events: 4,
    allocations: [
      { born: 1, freed: 3, size: 100 },
      { born: 2, freed: NEVER, size: 50, stream: 1 },
      { born: 4, freed: NEVER, size: 1 << 20, stream: 1 },
    ],
    times: [
      [0, 0],
      [1, 500_000],
      [2, 1_000_000],
      [3, 2_000_000],
    ],
    head: {
      seconds: 2.4,
      beside: { subject: 1, offset: 1_000_000 },
      ram: {
        error: 0,
        sampled_every: 65536,
        hows: [
          { name: "large", sampled: false },
          { name: "sampled", sampled: true },
        ],
        counted: { id: "counted", rows: 3 },
      },
    },
  });
  return new Memory(page, 0, columns, counted.done());
}

test("by time, a moment is where its event was, and every position has one", () => {
  const memory = ram();
  assert.ok(hasTime(memory.head));
  const scale = timeScale(memory, 4_000_000);
  assert.deepEqual([0, 1, 2, 3, 4].map(scale.of), [1_000_000, 1_000_000, 1_500_000, 2_000_000, 3_000_000]);
  assert.deepEqual([0, 999_999, 1_000_000, 1_499_999, 1_500_000, 3_999_999].map(scale.at), [0, 0, 1, 1, 2, 4]);
  assert.deepEqual([eventScale(memory).of(3), eventScale(memory).end], [3, 4]);
});

test("columns of time have the most of their time, also where nothing happened, and nothing before and after", () => {
  const memory = ram();
  const { allocated, reserved, files, groups } = memory.timeline("kind", 0, 3_999_999, 8, timeScale(memory, 4_000_000));
  const large = (1 << 20) + 50;
  assert.deepEqual([...allocated], [0, 0, 100, 150, 50, 50, large, 0]);
  assert.deepEqual([...groups[0].bytes], [0, 0, 100, 150, 50, 50, large, 0]);
  assert.deepEqual([...reserved], [0, 0, 10, 310, 310, 160, 160, 0], "the nearest count, where there is none");
  assert.deepEqual([...files], [0, 0, 5, 5, 5, 6, 6, 0]);
});

test("a sample says by how much it may be off", () => {
  const memory = ram();
  assert.equal(memory.errorAt(1), 0);
  assert.equal(
    memory.errorAt(2),
    100,
    "a block smaller than the distance of samples stands for itself, or for nothing",
  );
  const [{ error }] = memory.linesAt(4);
  assert.equal(error, Math.floor(2 * Math.sqrt(50 * 50 + (1 << 20) * 65536)));
  assert.equal(memory.flameAt(4, "all").error, error);
});

test("counts of the kernel are those nearest to a time", () => {
  const counts = new Counts(new Writer().unsigned(10).signed(7).signed(0).unsigned(10).signed(-2).signed(3).done(), 2);
  assert.deepEqual([counts.most("own", 0, 5), counts.most("own", 5, 25), counts.most("own", 17, 18)], [7, 7, 5]);
  assert.deepEqual([counts.most("files", 11, 12), counts.most("files", 30, Infinity)], [0, 3]);
  assert.equal(new Counts(new Uint8Array(), 0).most("own", 0, 1), 0);
});
