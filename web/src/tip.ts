// What is under the mouse in the timeline, beside it.

import { el, fill, swatch } from "./dom.ts";
import { whenOf } from "./facts.ts";
import { bytes, grouped } from "./format.ts";
import type { Memory, Timeline } from "./memory.ts";
import { wordsOf } from "./words.ts";

const MOST_GROUPS = 9;
const MOST_OOMS = 2;
const BESIDE = 14;

export interface Shown {
  name: string;
  colour: string;
  bytes: Float64Array;
}

export interface Tip {
  element: HTMLElement;
  /** Tells of a column; `x` and `width` are the mouse's place and the room there is. */
  show(memory: Memory, timeline: Timeline, groups: readonly Shown[], column: number, x: number, width: number): void;
  hide(): void;
}

export function createTip(): Tip {
  const element = el("div", { class: "tip", hidden: true });
  return {
    element,
    show(memory, timeline, groups, column, x, width) {
      const [first, last] = [timeline.firsts[column], timeline.lasts[column]];
      const words = wordsOf(memory.head);
      const files = timeline.files?.[column] ?? 0;
      const held = groups
        .map(({ name, colour, bytes: all }) => ({ name, colour, size: all[column] }))
        .filter(({ size }) => size > 0);
      held.sort((a, b) => b.size - a.size);
      const ooms = memory.head.ooms.filter(({ moment }) => first <= moment && moment <= last);
      const rows = held.slice(0, MOST_GROUPS).map(({ name, colour, size }) => {
        return el("tr", {}, el("td", {}, swatch(colour), name), el("td", { class: "number" }, bytes(size)));
      });
      element.hidden = false;
      fill(
        element,
        el("b", {}, whenOf(memory, timeline.tops[column]).join(", ")),
        last > first && el("div", { class: "muted" }, `the most of events ${grouped(first)} to ${grouped(last)}`),
        ...ooms.slice(0, MOST_OOMS).map(({ text }) => el("div", { class: "failure" }, text)),
        el(
          "div",
          {},
          `${bytes(timeline.allocated[column])} ${words.held}, ${bytes(timeline.reserved[column])} ${words.taken}`,
          files > 0 && `, ${bytes(files)} in pages of files`,
        ),
        el("table", {}, ...rows),
      );
      const { offsetWidth } = element;
      element.style.left = `${x + BESIDE + offsetWidth < width ? x + BESIDE : Math.max(0, x - BESIDE - offsetWidth)}px`;
    },
    hide() {
      element.hidden = true;
    },
  };
}
