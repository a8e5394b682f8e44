// What the program named: where it is, what is next to it, and where its bars lie.

import assert from "node:assert/strict";
import { test } from "node:test";
import { annotationAt, beside, firstMoments, inOrder } from "../src/annotation.ts";
import { barAt, inView, nested } from "../src/lanes.ts";

const NAMED = inOrder([
  { name: "epoch", from: 0, to: 100 },
  { name: "step", from: 0, to: 40 },
  { name: "forward", from: 5, to: 20 },
  { name: "step", from: 40, to: 100 },
  { name: "saved", from: 60, to: null },
  { name: "empty", from: 70, to: 70 },
]);

test("keys go from one beginning to the next, and stay at the ends", () => {
  const firsts = firstMoments(NAMED);
  assert.deepEqual([...firsts], [1, 1, 6, 41, 60, 70]);
  assert.deepEqual(
    [0, 1, 5, 6, 41, 69, 70, 99].map((moment) => beside(firsts, moment, 1)),
    [1, 6, 6, 41, 60, 70, 70, 99],
  );
  assert.deepEqual(
    [0, 1, 2, 6, 41, 60, 99].map((moment) => beside(firsts, moment, -1)),
    [0, 1, 1, 1, 6, 41, 70],
  );
  assert.equal(beside(firstMoments([]), 7, 1), 7);
});

test("what lies within another is in a lane below it", () => {
  const lanes = nested(NAMED);
  assert.deepEqual(
    lanes.map(({ bars }) => bars.map(({ name }) => name)),
    [["epoch"], ["step", "step"], ["forward", "saved", "empty"]],
  );
  assert.deepEqual(lanes[1].ends, [40, 100]);
  const deep = nested(Array.from({ length: 9 }, (_, depth) => ({ name: String(depth), from: depth, to: 100 - depth })));
  assert.deepEqual(
    deep.map(({ bars }) => bars.length),
    [1, 1, 1, 6],
  );
  assert.deepEqual(deep[3].ends, [97, 97, 97, 97, 97, 97]);
});

test("a view has the bars that reach into it", () => {
  const [, steps] = nested(NAMED);
  assert.deepEqual(inView(steps, { from: 0, to: 10 }), [0, 1]);
  assert.deepEqual(inView(steps, { from: 30, to: 50 }), [0, 2]);
  assert.deepEqual(inView(steps, { from: 41, to: 50 }), [1, 2]);
});

test("of what is under the mouse a mark is found first, then what begins last", () => {
  const [, , inner] = nested(NAMED);
  assert.equal(barAt(inner, 6, 1)?.name, "forward");
  assert.equal(barAt(inner, 59, 2)?.name, "saved");
  assert.equal(barAt(inner, 30, 1), undefined);
});

test("the innermost is found as by looking at all of them", () => {
  const many = inOrder(
    Array.from({ length: 400 }, (_, i) => {
      const from = (i * 7919) % 1000;
      return { name: String(i), from, to: i % 9 === 0 ? null : from + ((i * 31) % 60) };
    }),
  );
  for (let moment = 0; moment < 1100; moment += 3) {
    const marks = many.filter(({ from, to }) => to === null && from === moment);
    const around = many.filter(({ from, to }) => to !== null && from < moment && moment <= to);
    const latest = Math.max(...around.map(({ from }) => from));
    const found = annotationAt(many, moment);
    if (marks.length > 0) {
      assert.ok(marks.includes(found));
    } else {
      assert.equal(found?.from ?? -Infinity, latest);
    }
  }
});
