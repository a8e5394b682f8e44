// What a timeline is stacked of, with its colours, and what its legend says of a moment.

import type { Area } from "./chart.ts";
import type { Page } from "./data.ts";
import { swatch } from "./dom.ts";
import { bytes, bytesWithin } from "./format.ts";
import type { Entry } from "./legend.ts";
import { lineMark } from "./legend.ts";
import type { Group, Memory, Timeline } from "./memory.ts";
import type { Palette } from "./palette.ts";
import { wordsOf } from "./words.ts";

/** A group with the name by which the legend hides it. */
export type Shown = Group & Area & { id: string };

export const RESERVED = "reserved";
export const FILES = "files";
export const LIMIT = "limit";

export function areasOf(page: Page, palette: Palette, { by, groups }: Timeline): Shown[] {
  const keys = groups.map(({ key }) => key);
  const colours = by === "kind" ? keys.map((kind) => page.kinds[kind].colour) : palette.colours(keys);
  return groups.map((group, i) => ({ ...group, id: `${by} ${group.key}`, colour: colours[i] }));
}

/** What the legend says: groups at a moment, and the lines over them. */
export function entriesAt(
  memory: Memory,
  by: "kind" | "line",
  moment: number,
  areas: readonly Shown[],
  limitIsBeyond: boolean,
): Entry[] {
  const { limit, ram } = memory.head;
  const held = heldBy(
    memory,
    by,
    moment,
    areas.map(({ key }) => key),
  );
  const line = (id: string, name: string, style: "drawn" | "dashed" | "limit", value: string): Entry => {
    return { id, name, mark: lineMark(style), value };
  };
  return [
    ...areas.map(({ id, key, name, colour }) => {
      const { bytes: size, error } = held.get(key) ?? { bytes: 0, error: 0 };
      return { id, name, mark: swatch(colour), value: bytesWithin(size, error) };
    }),
    line(RESERVED, wordsOf(memory.head).taken, "drawn", bytes(memory.reservedAt(moment))),
    ...(ram === null ? [] : [line(FILES, "pages of files", "dashed", bytes(memory.filesAt(moment)))]),
    ...(limit === null
      ? []
      : [line(LIMIT, limit.text, "limit", bytes(limit.bytes) + (limitIsBeyond ? ", beyond the picture" : ""))]),
  ];
}

/** What groups hold at a moment, by their keys. */
function heldBy(
  memory: Memory,
  by: "kind" | "line",
  moment: number,
  keys: number[],
): Map<number, { bytes: number; error: number }> {
  const held = new Map<number, { bytes: number; error: number }>();
  const add = (key: number, one: { bytes: number; error: number }) => {
    const sum = held.get(key) ?? { bytes: 0, error: 0 };
    held.set(key, { bytes: sum.bytes + one.bytes, error: Math.floor(Math.hypot(sum.error, one.error)) });
  };
  if (by === "kind") {
    memory.kindsAt(moment).forEach((one) => add(one.kind, one));
  } else {
    const apart = new Set(keys);
    memory.linesAt(moment).forEach((one) => add(apart.has(one.line) ? one.line : -1, one));
  }
  return held;
}
