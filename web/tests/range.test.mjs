// Views of the timeline stay within the recording, whatever the reader does.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Palette } from "../src/palette.ts";
import { around, columnsAway, including, moved, zoomed } from "../src/range.ts";

const EVENTS = 1000;
const EVERY = { of: (moment) => moment, at: (position) => position };
const ALL = { from: 0, to: EVENTS };

test("a zoom keeps what is under the mouse where it is", () => {
  const { from, to } = zoomed({ from: 100, to: 499 }, 200, 0.5, EVENTS);
  assert.equal(to - from + 1, 200);
  assert.equal((200 - from) / 200, (200 - 100) / 400);
});

test("a zoom ends at the whole recording, and at a few moments", () => {
  assert.deepEqual(zoomed({ from: 900, to: 999 }, 999, 100, EVENTS), ALL);
  const closest = zoomed({ from: 500, to: 510 }, 505, 0.001, EVENTS);
  assert.equal(closest.to - closest.from + 1, 8);
  assert.deepEqual(zoomed({ from: 0, to: 3 }, 2, 0.1, 3), { from: 0, to: 3 });
  assert.deepEqual(zoomed({ from: 0, to: 0 }, 0, 2, 0), { from: 0, to: 0 });
});

test("a view moves no further than the ends", () => {
  assert.deepEqual(moved({ from: 10, to: 19 }, -50, EVENTS), { from: 0, to: 9 });
  assert.deepEqual(moved({ from: 10, to: 19 }, 5000, EVENTS), { from: 991, to: 1000 });
});

test("a moment out of view brings the view along, one in view does not", () => {
  assert.deepEqual(including({ from: 10, to: 19 }, 15, EVENTS), { from: 10, to: 19 });
  assert.deepEqual(including({ from: 10, to: 19 }, 5, EVENTS), { from: 5, to: 14 });
  assert.deepEqual(including({ from: 10, to: 19 }, 24, EVENTS), { from: 15, to: 24 });
});

test("a moment far out of view comes to its middle", () => {
  assert.deepEqual(including({ from: 10, to: 20 }, 500, EVENTS), { from: 495, to: 505 });
  assert.deepEqual(including({ from: 500, to: 510 }, 2, EVENTS), { from: 0, to: 10 });
  assert.deepEqual(including({ from: 500, to: 510 }, EVENTS, EVENTS), { from: 990, to: EVENTS });
});

test("arrow keys go from column to column, and out of view on from the moment", () => {
  const view = { from: 100, to: 139, starts: [100, 110, 120, 130], tops: [105, 119, 120, 131] };
  assert.deepEqual(
    [-1, 1, 2].map((by) => columnsAway(view, EVERY, 112, by)),
    [105, 120, 131],
  );
  const away = (moment, by) => columnsAway(view, EVERY, moment, by);
  assert.deepEqual([away(131, 1), away(105, -1)], [141, 95], "beyond the ends");
  assert.deepEqual([away(500, 1), away(500, -2), away(99, 1)], [510, 480, 109]);
});

test("what is shown whole has a margin", () => {
  assert.deepEqual(around(100, 200, EVENTS), { from: 97, to: 203 });
  assert.deepEqual(around(0, EVENTS, EVENTS), ALL);
});

test("a line keeps its colour while it is shown, and no two lines share one", () => {
  const palette = new Palette();
  const [first, second] = palette.colours([7, 8]);
  assert.notEqual(first, second);
  const [, kept] = palette.colours([9, 8]);
  assert.equal(kept, second);
  const many = palette.colours(Array.from({ length: 11 }, (_, line) => line));
  assert.equal(new Set(many).size, 11);
});
