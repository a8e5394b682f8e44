// Steps and annotations below the timeline: what the program was at, as bars over the same moments.
//
// There may be hundreds of thousands: of those that share a pixel one is drawn, and what is under the mouse is found by halving.

import type { Annotation } from "./annotation.ts";
import { begunBy } from "./annotation.ts";
import { el } from "./dom.ts";
import { grouped, plural } from "./format.ts";
import type { Memory } from "./memory.ts";
import type { Range } from "./range.ts";
import type { Scale } from "./scale.ts";
import { countUpTo } from "./sorting.ts";
import { colour } from "./theme.ts";

const LANE = 17;
const BAR = 14;
/** Annotations within annotations; deeper ones share the last lane. */
const MOST_LANES = 4;
/** Where bars are narrower than this on average, their number is written over them. */
const NARROWEST = 3;
/** How far from a mark the mouse still finds it, in pixels. */
const NEAR = 3;

interface Bar {
  name: string;
  from: number;
  /** Null for a mark. */
  to: number | null;
}

/** Bars in the order of their beginnings. */
export interface Lane {
  what: string;
  bars: Bar[];
  /** For each bar the latest end of it and those before it: where a view begins is found by halving. */
  ends: number[];
}

export interface Lanes {
  element: HTMLElement;
  draw(memory: Memory, scale: Scale, view: Range, left: number, width: number, right: number): void;
}

/** `choose` is called with the stretch of a bar that is clicked. */
export function createLanes(choose: (from: number, to: number) => void): Lanes {
  const canvas = el("canvas", { class: "lanes", "aria-hidden": "true" });
  let shown: Memory | null = null;
  let lanes: Lane[] = [];
  let view: Range = { from: 0, to: 0 };
  let scale: Scale | null = null;
  let left = 0;
  let width = 1;

  const barUnder = ({ offsetX, offsetY }: MouseEvent): Bar | undefined => {
    const perPixel = (view.to - view.from + 1) / width;
    const position = view.from + (offsetX - left) * perPixel;
    const lane: Lane | undefined = lanes[Math.floor(offsetY / LANE)];
    if (lane === undefined || scale === null) {
      return undefined;
    }
    // A bar covers the moments after its beginning.
    const at = scale.at(position) - 1;
    return barAt(lane, at, Math.max(scale.at(position + NEAR * perPixel) - 1 - at, Number.MIN_VALUE));
  };
  canvas.addEventListener("mousemove", (event) => {
    const bar = barUnder(event);
    const events = bar?.to == null ? "" : `, events ${grouped(bar.from + 1)} to ${grouped(bar.to)}`;
    canvas.title = bar === undefined ? "" : bar.name + events;
    canvas.style.cursor = bar?.to == null ? "" : "zoom-in";
  });
  canvas.addEventListener("click", (event) => {
    const bar = barUnder(event);
    if (bar?.to != null) {
      choose(bar.from, bar.to);
    }
  });

  return {
    element: canvas,
    draw(memory, along, range, plotLeft, plotWidth, right) {
      if (shown !== memory) {
        shown = memory;
        lanes = lanesOf(memory);
      }
      [view, left, width] = [range, plotLeft, plotWidth];
      scale = along;
      const ratio = devicePixelRatio;
      const total = left + width + right;
      canvas.width = Math.round(total * ratio);
      canvas.height = Math.round(lanes.length * LANE * ratio);
      canvas.style.width = `${total}px`;
      canvas.style.height = `${lanes.length * LANE}px`;
      const ctx = canvas.getContext("2d");
      if (ctx === null) {
        return;
      }
      ctx.scale(ratio, ratio);
      ctx.font = "11px system-ui, sans-serif";
      ctx.textBaseline = "middle";
      ctx.fillStyle = colour("--muted");
      ctx.textAlign = "right";
      lanes.forEach(({ what }, lane) => {
        if (what !== lanes[lane - 1]?.what) {
          ctx.fillText(`${what}s`, left - 8, lane * LANE + BAR / 2 + 1);
        }
      });
      ctx.textAlign = "left";
      ctx.beginPath();
      ctx.rect(left, 0, width, lanes.length * LANE);
      ctx.clip();
      lanes.forEach((lane, index) => drawLane(ctx, along, lane, index * LANE + 1));
    },
  };

  function drawLane(ctx: CanvasRenderingContext2D, along: Scale, lane: Lane, y: number): void {
    const { what, bars } = lane;
    const perPosition = width / (view.to - view.from + 1);
    const xOf = (moment: number) => left + (along.of(moment + 1) - view.from) * perPosition;
    const fills = [colour("--hover"), colour("--line")];
    const marks = colour("--muted");
    const write = (text: string, x: number, end: number) => {
      const visible = Math.max(x, left);
      const room = Math.min(end, left + width) - visible - 8;
      if (room > 8) {
        ctx.fillStyle = colour("--text");
        ctx.fillText(cut(ctx, text, room), visible + 4, y + BAR / 2 + 0.5);
      }
    };
    const [first, beyond] = inView(lane, { from: along.at(view.from), to: along.at(view.to) });
    const crowded = (beyond - first) * NARROWEST > width;
    let last = { pixel: -Infinity, wide: false };
    for (let at = first; at < beyond; at++) {
      const { name, from, to } = bars[at];
      const x = xOf(from);
      const end = to === null ? x + 2 : Math.max(x + 1, xOf(to) - (crowded ? 0 : 1));
      const pixel = Math.floor(x);
      const wide = end - x > 2;
      if (crowded && pixel === last.pixel && (last.wide || !wide)) {
        continue; // what begins in the same pixel is there already
      }
      last = { pixel, wide };
      ctx.fillStyle = to === null ? marks : fills[crowded ? 0 : at % 2];
      ctx.fillRect(x, y, end - x, BAR);
      if (to !== null && !crowded) {
        write(name, x, end);
      }
    }
    if (crowded) {
      write(plural(beyond - first, what), xOf(bars[first].from), xOf(lane.ends[beyond - 1]));
    }
  }
}

/** The bars from the first that reaches into a view to the last that begins in it. Some between may end before it. */
export function inView({ bars, ends }: Lane, { from, to }: Range): [first: number, beyond: number] {
  return [countUpTo(ends, from - 1), begunBy(bars, to)];
}

/** The mark close to a place, or the bar that is there: of several, the one that begins last. */
export function barAt({ bars, ends }: Lane, at: number, near: number): Bar | undefined {
  const [first, beyond] = [countUpTo(ends, at - near), begunBy(bars, at + near)];
  let found: Bar | undefined;
  for (let index = beyond - 1; index >= first; index--) {
    const bar = bars[index];
    if (bar.to === null && Math.abs(bar.from - at) < near) {
      return bar;
    }
    found ??= bar.to !== null && bar.from <= at && at < bar.to ? bar : undefined;
  }
  return found;
}

function cut(ctx: CanvasRenderingContext2D, text: string, room: number): string {
  if (ctx.measureText(text).width <= room) {
    return text;
  }
  let kept = Math.min(text.length, Math.floor(room / 5));
  while (kept > 0 && ctx.measureText(`${text.slice(0, kept)}…`).width > room) {
    kept--;
  }
  return kept > 0 ? `${text.slice(0, kept)}…` : "";
}

function lanesOf({ head: { steps }, annotations }: Memory): Lane[] {
  const lanes = nested(annotations);
  if (steps === null) {
    return lanes;
  }
  const bars = steps.begins.map((from, step): Bar => {
    return { name: String(step + 1), from, to: steps.begins[step + 1] ?? steps.end };
  });
  return [{ what: "step", bars, ends: bars.map(({ to }) => to ?? 0) }, ...lanes];
}

/** Annotations, which must be in order, in lanes: one within another lies below it. */
export function nested(annotations: readonly Annotation[]): Lane[] {
  const lanes: Lane[] = [];
  for (const { name, from, to } of annotations) {
    const free = lanes.findIndex(({ ends }) => (ends[ends.length - 1] ?? 0) <= from);
    const index = free >= 0 ? free : Math.min(lanes.length, MOST_LANES - 1);
    lanes[index] ??= { what: "range", bars: [], ends: [] };
    const { bars, ends } = lanes[index];
    bars.push({ name, from, to });
    ends.push(Math.max(ends[ends.length - 1] ?? 0, to ?? from));
  }
  return lanes;
}
