// What the views compute before they draw.

import assert from "node:assert/strict";
import { test } from "node:test";
import { heldByCalls } from "../src/flame.ts";
import { byName } from "../src/names.ts";
import { pageOf } from "../src/pager.ts";
import { recent } from "../src/recent.ts";
import { queryOf, searched } from "../src/search.ts";
import { flow, scaleFor } from "../src/segment-map.ts";
import { mostIn } from "../src/whatif.ts";

const MIB = 2 ** 20;

function samples(...rows) {
  return {
    events: Float64Array.from(rows, ([event]) => event),
    reserved: Float64Array.from(rows, ([, bytes]) => bytes),
  };
}

test("a column of a trial is the most that any of its events reserves", () => {
  const trial = samples([0, 10], [4, 50], [5, 20], [9, 30]);
  assert.deepEqual(mostIn(trial, [0, 5, 10], 12, false), [50, 30, 30]);
  assert.deepEqual(mostIn(trial, [6, 7, 8, 9], 9, false), [20, 20, 20, 30], "a view that begins between samples");
});

test("a trial that died has nothing after its last sample", () => {
  const trial = samples([0, 10], [4, 50]);
  assert.deepEqual(mostIn(trial, [0, 3, 6], 8, true), [10, 50, null]);
  assert.deepEqual(mostIn(trial, [0, 3, 6], 8, false), [10, 50, 50]);
  assert.deepEqual(mostIn(samples(), [0, 3], 5, false), [null, null]);
});

test("segments are laid out to scale and without overlap", () => {
  const segments = [20, 20, 490, 2, 2, 2, 100].map((size) => ({ size: size * MIB }));
  const width = 600;
  const { pieces, lines } = flow(segments, MIB, width);
  segments.forEach(({ size }, segment) => {
    const drawn = pieces.filter((piece) => piece.segment === segment).reduce((sum, piece) => sum + piece.width, 0);
    assert.equal(drawn, size / MIB);
  });
  pieces.forEach((piece, at) => {
    const before = pieces[at - 1];
    assert.ok(piece.x >= 0 && piece.x + piece.width <= width);
    assert.ok(before === undefined || before.line < piece.line || before.x + before.width <= piece.x);
  });
  assert.equal(lines, 2);
});

test("a segment that is longer than a line goes on in the next one, byte after byte", () => {
  const { pieces } = flow([{ size: 1000 }], 1, 400);
  assert.deepEqual(
    pieces.map(({ line, x, width, offset }) => [line, x, width, offset]),
    [
      [0, 0, 400, 0],
      [1, 0, 400, 400],
      [2, 0, 200, 800],
    ],
  );
});

test("the scale is as fine as the lines allow", () => {
  const many = Array.from({ length: 60 }, () => ({ size: 20 * MIB }));
  const scale = scaleFor(many, 1000, 8);
  assert.ok(flow(many, scale, 1000).lines <= 8);
  assert.ok(flow(many, scale * 0.98, 1000).lines > 8);
});

test("segments are not broken over lines where a coarser scale avoids it", () => {
  const segments = [400, 68, 68, 20, 20].map((size) => ({ size: size * MIB }));
  assert.ok(scaleFor(segments, 1000, 5) >= (400 * MIB) / 1000);
  const one = [{ size: 40960 * MIB }];
  assert.equal(
    flow(one, scaleFor(one, 1000, 16), 1000).lines,
    16,
    "one that is all there is takes the lines that there are",
  );
});

test("more segments than there are pixels are drawn all the same", () => {
  const many = Array.from({ length: 20000 }, () => ({ size: 2 * MIB }));
  const scale = scaleFor(many, 500, 4);
  assert.ok(Number.isFinite(scale) && scale > 0);
  assert.equal(new Set(flow(many, scale, 500).pieces.map(({ segment }) => segment)).size, many.length);
});

test("a page ends where its list does", () => {
  assert.deepEqual(pageOf(0, 25, 60), [0, 25]);
  assert.deepEqual(pageOf(50, 25, 60), [50, 60]);
  assert.deepEqual(pageOf(75, 25, 60), [50, 60], "a list that became shorter");
  assert.deepEqual(pageOf(-25, 25, 60), [0, 25]);
  assert.deepEqual(
    [pageOf(25, 25, 50), pageOf(0, 25, 0)],
    [
      [25, 50],
      [0, 0],
    ],
  );
});

test("a search finds words in any order, in the line or in the kind", () => {
  const line = {
    label: "models/gpt.py:31 forward",
    function: "forward",
    file: "models/gpt.py",
    through: "torch/nn/linear.py:125",
    source: "x = self.mlp(x)",
  };
  const text = searched(line, { name: "optimizer state", key: "optimizer_state", colour: "" });
  for (const wanted of ["GPT", "forward gpt", "  linear   optimizer ", "self.mlp", "optimizer_state", ""]) {
    assert.ok(queryOf(wanted).matches(text), wanted);
  }
  for (const wanted of ["backward", "forward backward", "gptforward"]) {
    assert.ok(!queryOf(wanted).matches(text), wanted);
  }
  assert.ok(queryOf(" \t").empty);
});

test("calls that match are counted once, and those that a switch leaves out are not there", () => {
  const frames = [
    { name: "main", file: "train.py", line: 3, own: true, native: false },
    { name: "at::empty", file: "", line: 0, own: false, native: true },
  ];
  const leaf = { name: "at::empty", frame: 1, bytes: 30, count: 1, children: [] };
  const root = {
    name: "all",
    frame: -1,
    bytes: 50,
    count: 2,
    children: [{ name: "main", frame: 0, bytes: 50, count: 2, children: [leaf] }],
  };
  assert.equal(heldByCalls(root, frames, queryOf("train.py:3 main")), 50);
  assert.equal(heldByCalls(root, frames, queryOf("a")), 50);
  assert.equal(heldByCalls(root, frames, queryOf("empty")), 30);
  assert.equal(
    heldByCalls({ ...root, children: [{ ...root.children[0], children: [] }] }, frames, queryOf("empty")),
    0,
  );
  assert.equal(heldByCalls(root, frames, queryOf("all")), 0, "the root is no call");
  assert.equal(heldByCalls(root, frames, queryOf("")), 0);
});

test("names are in the order that people count in", () => {
  assert.deepEqual(["rank10.pickle", "rank2.pickle", "rank1.pickle", "a, device 10", "a, device 9"].sort(byName), [
    "a, device 9",
    "a, device 10",
    "rank1.pickle",
    "rank2.pickle",
    "rank10.pickle",
  ]);
});

test("the last few answers are kept, and no failure", async () => {
  const asked = [];
  const read = recent(2, async (key) => {
    asked.push(key);
    if (key === 9 && asked.filter((one) => one === 9).length === 1) {
      throw new Error("once");
    }
    return { key };
  });
  const first = await read(1);
  assert.equal(await read(1), first);
  await read(2);
  assert.equal(await read(1), first, "asked for again, it is recent");
  await read(3);
  assert.equal(await read(1), first);
  await read(2);
  assert.deepEqual(asked, [1, 2, 3, 2]);
  await assert.rejects(read(9), /once/);
  assert.deepEqual(await read(9), { key: 9 });
});
