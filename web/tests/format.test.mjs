// Numbers read as everywhere else in oomph: the cases are those of `crates/oomph-words`, and ties.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { bytes, change, fixed, grouped, percent, plural, seconds, timeWithin } from "../src/format.ts";

test("bytes read as in the terminal", () => {
  const table = JSON.parse(readFileSync(new URL("../../crates/oomph-words/sizes.json", import.meta.url), "utf8"));
  for (const [value, text] of table.written) {
    assert.equal(bytes(value), text);
  }
  assert.deepEqual([change(2048), change(-2048), change(0)], ["+2.00 KiB", "−2.00 KiB", "0 B"]);
});

test("ties go to the even digit, as Rust rounds", () => {
  assert.deepEqual([fixed(2.5, 0), fixed(100.5, 0), fixed(0.5, 0), fixed(3.5, 0)], ["2", "100", "0", "4"]);
  assert.deepEqual(
    [fixed(12.75, 1), fixed(12.25, 1), fixed(1.005, 2), fixed(9.995, 2)],
    ["12.8", "12.2", "1.00", "9.99"],
  );
});

test("shares do not lie at the ends", () => {
  assert.deepEqual(
    [percent(1, 1000), percent(999, 1000), percent(1, 1), percent(0, 5), percent(5, 0), percent(1, 8)],
    ["<1 %", ">99 %", "100 %", "0 %", "0 %", "12 %"],
  );
  assert.deepEqual(
    [grouped(1_234_567), grouped(999), plural(1, "block"), plural(1000, "block")],
    ["1,234,567", "999", "1 block", "1,000 blocks"],
  );
});

test("times have the unit that people would use", () => {
  assert.deepEqual(
    [seconds(0), seconds(0.000012), seconds(0.0123), seconds(1.5), seconds(12.34), seconds(1234.5)],
    ["0 µs", "12 µs", "12.3 ms", "1.50 s", "12.3 s", "1,235 s"],
  );
});

test("times of a stretch have decimals for its parts", () => {
  assert.deepEqual(
    [
      timeWithin(12.3456, 35),
      timeWithin(12.3456, 0.02),
      timeWithin(0.0123456, 0.02),
      timeWithin(0.25, 0.9),
      timeWithin(5, 0),
    ],
    ["12.3 s", "12.3456 s", "12.3 ms", "250 ms", "5.000 s"],
  );
});

test("times have no digits below what they may be off by", () => {
  assert.deepEqual(
    [
      seconds(1.5, 0.02),
      seconds(0.27, 0.02),
      seconds(0.0123, 40e-6),
      seconds(0.0003, 40e-6),
      seconds(0.0003, 1e-6),
      seconds(12.34, 0.5),
    ],
    ["1.5 s", "0.3 s", "12.3 ms", "0.3 ms", "300 µs", "12 s"],
  );
  assert.deepEqual(
    [
      timeWithin(12.3456789, 0.0001, 40e-6),
      timeWithin(0.0123456, 0.0001, 40e-6),
      timeWithin(0.5, 1, 0.02),
      timeWithin(7, 1, 30),
    ],
    ["12.3457 s", "12.3 ms", "0.5 s", "7 s"],
  );
  assert.deepEqual(
    [seconds(2e-5, 16e-6), seconds(0.003, 0.004), seconds(0, 16e-6), seconds(1e-5)],
    ["<0.1 ms", "<0.01 s", "0.0 ms", "10 µs"],
  );
  assert.equal(seconds(0.9996), "1000 ms");
});
