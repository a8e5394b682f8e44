// What the page says about memory, against small cases done by hand and against a model that is slow and plain.

import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeSamples, readUnsigned, Varints } from "../src/data.ts";
import { Memory } from "../src/memory.ts";
import { largestFirst } from "../src/sorting.ts";
import { NEVER, subject, Writer } from "./encode.mjs";

const MIB = 2 ** 20;

function memoryOf(model) {
  const { page, columns } = subject(model);
  return new Memory(page, 0, columns);
}

/** Numbers that are the same on every run. */
function randomness(seed) {
  return (below) => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 2 ** 32) * below);
  };
}

test("varints are exact beyond 32 bits", () => {
  const values = [
    0,
    1,
    127,
    128,
    300,
    2 ** 28,
    2 ** 31,
    2 ** 32 - 1,
    2 ** 32,
    2 ** 40 + 1,
    0x7f12_3456_7890,
    2 ** 53 - 1,
  ];
  const writer = new Writer();
  values.forEach((value) => writer.unsigned(value));
  const reader = new Varints(writer.done());
  values.forEach((value) => assert.equal(reader.unsigned(), value));
  assert.throws(() => reader.unsigned(), /ends early/);
  assert.deepEqual([...readUnsigned(writer.done(), new Float64Array(values.length))], values);
  assert.throws(() => readUnsigned(writer.done(), new Float64Array(values.length + 1)), /ends early/);
});

test("signed varints are exact to the last bit", () => {
  const values = [0, -1, 1, 63, 64, -64, -65, 2 ** 31, -(2 ** 31) - 1, 2 ** 47 + 512, 2 ** 53 - 1, -(2 ** 53) + 1];
  const writer = new Writer();
  values.forEach((value) => writer.signed(value));
  const reader = new Varints(writer.done());
  values.forEach((value) => assert.equal(reader.signed(), value));
});

test("samples of a trial add up", () => {
  const bytes = new Writer()
    .unsigned(0)
    .signed(5 * 2 ** 33)
    .unsigned(7)
    .signed(-(2 ** 33))
    .done();
  const { events, reserved } = decodeSamples(bytes, 2);
  assert.deepEqual([...events], [0, 7]);
  assert.deepEqual([...reserved], [5 * 2 ** 33, 4 * 2 ** 33]);
});

test("orders are stable and largest first", () => {
  const random = randomness(3);
  const keys = Uint32Array.from({ length: 5000 }, () => (random(2) === 0 ? random(4) : random(2 ** 32)));
  const expected = [...keys.keys()].sort((a, b) => keys[b] - keys[a] || a - b);
  assert.deepEqual([...largestFirst(keys)], expected);
  assert.deepEqual([...largestFirst(new Uint32Array(3))], [0, 1, 2]);
  assert.deepEqual([...largestFirst(Uint32Array.of(0xffffffff, 0, 0xffffffff))], [0, 2, 1]);
});

const LINES = 14;

/** A history in which each event allocates, frees, or changes what is reserved. */
function randomModel(seed) {
  const random = randomness(seed);
  const allocations = [];
  const segments = [];
  const open = [];
  const events = 40 + random(200);
  const allocate = (born) => {
    const block = {
      born,
      freed: NEVER,
      size: 512 * (1 + random(2 ** 24)),
      address: 2 ** 46 + 512 * random(2 ** 30),
      kind: random(3),
      stack: random(LINES),
    };
    open.push(block);
    allocations.push(block);
  };
  for (let i = random(5); i > 0; i--) {
    allocate(0);
  }
  segments.push({ moment: 0, taken: true, address: 2 ** 46, size: 2 ** 30 });
  for (let moment = 1; moment <= events; moment++) {
    const what = random(10);
    if (what < 5) {
      allocate(moment);
    } else if (what < 8 && open.length > 0) {
      open.splice(random(open.length), 1)[0].freed = moment;
    } else if (what === 8) {
      segments.push({ moment, taken: true, address: 2 ** 47 + moment * 2 ** 32, size: 2 * MIB * (1 + random(500)) });
    }
  }
  const strings = Array.from({ length: LINES }, (_, i) => `file.py:${i} f`);
  const text = { strings, frames: [], lines: strings.map((_, i) => [i, -1, i, -1, 3, -1, -1]) };
  const stacks = strings.map((_, i) => [-1, i]);
  return { events, allocations, segments, text, stacks };
}

const alive = (model, moment) => model.allocations.filter(({ born, freed }) => born <= moment && moment < freed);
const sum = (blocks) => blocks.reduce((total, { size }) => total + size, 0);
const reserved = (model, moment) => sum(model.segments.filter((change) => change.moment <= moment));

test("every question agrees with a plain model, whatever the history and the view", () => {
  for (let seed = 1; seed <= 60; seed++) {
    const model = randomModel(seed);
    const memory = memoryOf(model);
    const random = randomness(seed + 1000);
    for (let view = 0; view < 12; view++) {
      const from = view === 0 ? 0 : random(model.events);
      const to = view === 0 ? model.events : from + random(model.events - from + 1);
      const columns = view === 0 ? 10_000 : 1 + random(60);
      for (const by of ["kind", "line"]) {
        const timeline = memory.timeline(by, from, to, columns);
        const { starts, tops, groups } = timeline;
        assert.equal(starts.length, Math.min(columns, to - from + 1));
        assert.equal(starts[0], from);
        starts.forEach((start, column) => {
          const end = column + 1 < starts.length ? starts[column + 1] : to + 1;
          assert.ok(start < end, "a column has a moment");
          const moments = Array.from({ length: end - start }, (_, i) => start + i);
          const totals = moments.map((moment) => sum(alive(model, moment)));
          const most = Math.max(...totals);
          assert.equal(timeline.allocated[column], most);
          assert.equal(tops[column], moments[totals.indexOf(most)]);
          assert.equal(timeline.reserved[column], Math.max(...moments.map((moment) => reserved(model, moment))));
          const there = alive(model, tops[column]);
          assert.equal(
            groups.reduce((total, { bytes }) => total + bytes[column], 0),
            most,
          );
          const apart = groups.filter(({ key }) => key >= 0).map(({ key }) => key);
          for (const { key, bytes } of groups) {
            const belongs = (block) => {
              const group = by === "kind" ? block.kind : block.stack;
              return key >= 0 ? group === key : !apart.includes(group);
            };
            assert.equal(bytes[column], sum(there.filter(belongs)), `${by} ${key} in column ${column}`);
          }
        });
        assert.ok(by === "kind" || groups.length <= 11);
      }
      const found = memory.inRange(from, to);
      const expected = model.allocations
        .map((block, i) => ({ ...block, i }))
        .filter(({ born, freed }) => born <= to && from < freed)
        .sort((a, b) => b.size - a.size || a.i - b.i);
      assert.deepEqual(
        [...found],
        expected.map(({ i }) => i),
      );
    }
    for (const moment of [0, random(model.events), model.events]) {
      const there = alive(model, moment);
      assert.equal(memory.allocatedAt(moment), sum(there));
      assert.equal(memory.reservedAt(moment), reserved(model, moment));
      for (const { line, bytes, count, kind } of memory.linesAt(moment)) {
        const ofLine = there.filter(({ stack }) => stack === line);
        assert.deepEqual([bytes, count], [sum(ofLine), ofLine.length]);
        const most = sum(ofLine.filter((block) => block.kind === kind));
        assert.ok([0, 1, 2].every((other) => sum(ofLine.filter((block) => block.kind === other)) <= most));
      }
      assert.equal(sum(memory.linesAt(moment).map(({ bytes }) => ({ size: bytes }))), sum(there));
      assert.equal(
        memory.kindsAt(moment).reduce((total, { count }) => total + count, 0),
        there.length,
      );
      assert.equal(memory.flameAt(moment, "all").bytes, sum(there));
    }
  }
});

test("the longest lived come first, those that never end by how long they were seen", () => {
  const memory = memoryOf({
    events: 10,
    allocations: [
      { born: 1, freed: 3, size: 512 },
      { born: 2, size: 512 },
      { born: 3, freed: 10, size: 512 },
      { born: 9, size: 512 },
    ],
  });
  assert.deepEqual([...memory.byLifetime()], [1, 2, 0, 3]);
});

test("a segment's free bytes are holes only where something keeps it", () => {
  const memory = memoryOf({
    events: 4,
    allocations: [
      { born: 1, size: 2 * MIB, requested: 2 * MIB - 700, rounded: 2 * MIB - 512, address: 0x1000_0000 },
      { born: 2, freed: 4, size: 4 * MIB, address: 0x1000_0000 + 6 * MIB },
    ],
    segments: [
      { moment: 0, taken: true, address: 0x1000_0000, size: 20 * MIB, line: 0 },
      { moment: 0, taken: true, address: 0x3000_0000, size: 2 * MIB, small: true },
      { moment: 3, taken: true, address: 0x2000_0000, size: 10 * MIB, stream: 1 },
      { moment: 3, taken: true, address: 0x4000_0000, size: 6 * MIB, pool: 1 },
    ],
  });
  const segments = memory.segmentsAt(3);
  assert.deepEqual(
    segments.map(({ address }) => address),
    [0x1000_0000, 0x2000_0000, 0x3000_0000, 0x4000_0000],
  );
  assert.deepEqual(
    segments.map(({ blocks }) => blocks.map(({ size, state, allocation }) => [size / MIB, state, allocation])),
    [
      [
        [2, "used", 0],
        [4, "hole", -1],
        [4, "used", 1],
        [10, "hole", -1],
      ],
      [[10, "other stream", -1]],
      [[2, "cached", -1]],
      [[6, "private", -1]],
    ],
  );
  assert.deepEqual([segments[0].line, segments[2].line, segments[2].small], [0, -1, true]);
  assert.deepEqual(memory.wasteAt(3), {
    reserved: 38 * MIB,
    allocated: 6 * MIB,
    requested: 6 * MIB - 700,
    rounding: 188,
    remainders: 512,
    pending: 0,
    holes: 14 * MIB,
    cached: 2 * MIB,
    other_streams: 10 * MIB,
    private_pools: 6 * MIB,
    largest_free: 10 * MIB,
  });
  // Asked for an earlier moment after a later one, and with the second block gone.
  assert.equal(memory.segmentsAt(0).length, 2);
  assert.deepEqual(
    memory.segmentsAt(0)[0].blocks.map(({ state }) => state),
    ["cached"],
  );
  assert.equal(memory.wasteAt(4).largest_free, 18 * MIB);
});

test("what another stream still holds is pending, and keeps its segment", () => {
  const memory = memoryOf({
    events: 6,
    allocations: [{ born: 1, freed: 2, back: 5, size: MIB, address: 0 }],
    segments: [{ moment: 0, taken: true, address: 0, size: 4 * MIB }],
  });
  const states = (moment) => memory.segmentsAt(moment)[0].blocks.map(({ state, allocation }) => [state, allocation]);
  assert.deepEqual(states(1), [
    ["used", 0],
    ["hole", -1],
  ]);
  assert.deepEqual(states(4), [
    ["pending", 0],
    ["hole", -1],
  ]);
  assert.deepEqual(states(5), [["cached", -1]]);
  const { pending, holes, allocated, reserved } = memory.wasteAt(4);
  assert.deepEqual([pending, holes, allocated, reserved], [MIB, 3 * MIB, 0, 4 * MIB]);
});

test("expandable pieces that touch are one segment, and can be cut", () => {
  const piece = (moment, taken, index, size = 1) => {
    return { moment, taken, address: index * 20 * MIB, size: size * 20 * MIB, expandable: true };
  };
  const memory = memoryOf({
    events: 9,
    segments: [
      piece(0, true, 3),
      piece(1, true, 5),
      piece(2, true, 4),
      piece(3, true, 2),
      piece(4, false, 3, 2),
      { moment: 5, taken: true, address: 60 * MIB, size: 20 * MIB },
    ],
  });
  const ranges = (moment) =>
    memory.segmentsAt(moment).map(({ address, size }) => [address / MIB / 20, size / MIB / 20]);
  assert.deepEqual(ranges(1), [
    [3, 1],
    [5, 1],
  ]);
  assert.deepEqual(ranges(2), [[3, 3]]);
  assert.deepEqual(ranges(3), [[2, 4]]);
  assert.deepEqual(ranges(4), [
    [2, 1],
    [5, 1],
  ]);
  assert.deepEqual(ranges(5), [
    [2, 1],
    [3, 1],
    [5, 1],
  ]);
  assert.deepEqual(
    [4, 3].map((moment) => memory.reservedAt(moment) / MIB / 20),
    [2, 4],
  );
});

test("of two streams with as much memory the later one is the main one", () => {
  const memory = memoryOf({
    events: 1,
    segments: [
      { moment: 0, taken: true, address: 0, size: 2 * MIB, stream: 0 },
      { moment: 0, taken: true, address: 4 * MIB, size: 2 * MIB, stream: 1 },
    ],
  });
  assert.deepEqual(
    memory.segmentsAt(0).map(({ blocks }) => blocks[0].state),
    ["other stream", "cached"],
  );
});

test("a flame graph leaves out calls, never bytes", () => {
  const text = {
    strings: [
      "main",
      "train.py",
      "matmul",
      "torch/nn.py",
      "at::empty",
      "kernel.cpp",
      "backward pass",
      "train.py:1 main",
    ],
    frames: [
      [0, 1, 1, 1],
      [2, 3, 9, 0],
      [4, 5, 0, 2],
    ],
    lines: [
      [7, 1, 1, 0, 3, -1, -1],
      [6, -1, 0, -1, 0, -1, -1],
    ],
  };
  const memory = memoryOf({
    events: 3,
    text,
    nodes: [
      [-1, 0],
      [0, 1],
      [1, 2],
      [-1, 2],
    ],
    stacks: [
      [2, 0],
      [3, 1],
      [0, 0],
    ],
    allocations: [
      { born: 1, size: 4096, stack: 0 },
      { born: 2, size: 1024, stack: 1 },
      { born: 3, size: 512, stack: 2 },
    ],
  });
  const outline = ({ name, bytes, children }) =>
    children.length > 0 ? [name, bytes, children.map(outline)] : [name, bytes];
  assert.deepEqual(outline(memory.flameAt(3, "own")), [
    "all",
    5632,
    [
      ["main", 4608],
      ["backward pass", 1024],
    ],
  ]);
  assert.deepEqual(outline(memory.flameAt(3, "python")), [
    "all",
    5632,
    [
      ["main", 4608, [["matmul", 4096]]],
      ["backward pass", 1024],
    ],
  ]);
  assert.deepEqual(outline(memory.flameAt(3, "all")), [
    "all",
    5632,
    [
      ["main", 4608, [["matmul", 4096, [["at::empty", 4096]]]]],
      ["at::empty", 1024],
    ],
  ]);
  assert.deepEqual(
    memory.stackOf(0).map(({ name }) => name),
    ["at::empty", "matmul", "main"],
  );
  assert.deepEqual(memory.lines[1], {
    label: "backward pass",
    file: "",
    line: 0,
    function: "",
    own: false,
    real: false,
    through: "",
    source: "",
  });
});

test("times lie on straight lines between corners, the last one that of the last event", () => {
  const memory = memoryOf({
    events: 8,
    times: [
      [0, 0],
      [3, 3_000_000],
      [4, 9_000_000],
      [7, 9_000_300],
    ],
    within: 40,
  });
  assert.deepEqual(
    [0, 1, 2, 4, 5, 6, 8, 99].map((moment) => memory.timeOf(moment)),
    [0, 0, 1, 3, 9, 9.0001, 9.0003, 9.0003],
  );
  assert.equal(memory.timeError, 40e-6);
  assert.equal(memoryOf({ events: 1, times: [[0, 0]] }).timeOf(1), 0);
  assert.equal(memoryOf({ events: 8 }).timeOf(3), null);
});

test("a step begins with the moment after its boundary", () => {
  const head = { steps: { begins: [2, 5], end: 8, partial: false, repeated: 0, peaks: [0, 0] } };
  const memory = memoryOf({ events: 10, head });
  assert.deepEqual(
    [0, 2, 3, 5, 6, 8, 9].map((moment) => memory.stepOf(moment)),
    [null, null, 1, 1, 2, 2, null],
  );
});

test("annotations are in order, and the innermost names a moment", () => {
  const memory = memoryOf({
    events: 30,
    text: {
      strings: ["no stack", "epoch", "forward", "layer", "mark"],
      frames: [],
      lines: [[0, -1, 0, -1, 0, -1, -1]],
    },
    annotations: [
      { name: "layer", from: 4, to: 8 },
      { name: "epoch", from: 2, to: 20 },
      { name: "forward", from: 4, to: 12 },
      { name: "mark", from: 14, to: null },
      { name: "forward", from: 20, to: 20 },
    ],
  });
  assert.deepEqual(
    memory.annotations.map(({ name, from, to }) => [name, from, to]),
    [
      ["epoch", 2, 20],
      ["forward", 4, 12],
      ["layer", 4, 8],
      ["mark", 14, null],
      ["forward", 20, 20],
    ],
  );
  const names = [0, 2, 3, 4, 5, 8, 9, 12, 13, 14, 15, 20, 21].map(
    (moment) => memory.annotationAt(moment)?.name ?? null,
  );
  assert.deepEqual(names, [
    null,
    null,
    "epoch",
    "epoch",
    "layer",
    "layer",
    "forward",
    "forward",
    "epoch",
    "mark",
    "epoch",
    "epoch",
    null,
  ]);
});
