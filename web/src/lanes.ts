// Steps and annotations below the timeline: what the program was at, as bars over the same moments.

import type { Annotation, SubjectHead } from "./data.ts";
import { el } from "./dom.ts";
import { grouped, plural } from "./format.ts";
import type { Range } from "./range.ts";
import { colour } from "./theme.ts";

const LANE = 17;
const BAR = 14;
/** Annotations within annotations; deeper ones share the last lane. */
const MOST_LANES = 4;
/** Bars narrower than this on average are drawn as one, with their number. */
const NARROWEST = 3;

interface Lane {
  what: string;
  bars: Bar[];
}

interface Bar {
  name: string;
  from: number;
  /** Null for a mark. */
  to: number | null;
  /** Neighbours differ in shade. */
  even: boolean;
}

export interface Lanes {
  element: HTMLElement;
  draw(head: SubjectHead, view: Range, left: number, width: number, right: number): void;
}

/** `choose` is called with the stretch of a bar that is clicked. */
export function createLanes(choose: (from: number, to: number) => void): Lanes {
  const canvas = el("canvas", { class: "lanes", "aria-hidden": "true" });
  let shown: SubjectHead | null = null;
  let lanes: Lane[] = [];
  let view: Range = { from: 0, to: 0 };
  let left = 0;
  let width = 1;

  const barAt = ({ offsetX, offsetY }: MouseEvent): Bar | undefined => {
    const at = view.from + ((offsetX - left) / width) * (view.to - view.from + 1);
    const near = ((view.to - view.from + 1) / width) * 3;
    const lane: Lane | undefined = lanes[Math.floor(offsetY / LANE)];
    const mark = lane?.bars.find(({ from, to }) => to === null && Math.abs(from - at) < near);
    return mark ?? lane?.bars.find(({ from, to }) => from <= at && at < (to ?? from));
  };
  canvas.addEventListener("mousemove", (event) => {
    const bar = barAt(event);
    const events = bar?.to == null ? "" : `, events ${grouped(bar.from + 1)} to ${grouped(bar.to)}`;
    canvas.title = bar === undefined ? "" : bar.name + events;
    canvas.style.cursor = bar?.to == null ? "" : "zoom-in";
  });
  canvas.addEventListener("click", (event) => {
    const bar = barAt(event);
    if (bar?.to != null) {
      choose(bar.from, bar.to);
    }
  });

  return {
    element: canvas,
    draw(head, range, plotLeft, plotWidth, right) {
      if (shown !== head) {
        shown = head;
        lanes = lanesOf(head);
      }
      [view, left, width] = [range, plotLeft, plotWidth];
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
      lanes.forEach((lane, index) => drawLane(ctx, lane, index * LANE + 1));
    },
  };

  function drawLane(ctx: CanvasRenderingContext2D, { what, bars }: Lane, y: number): void {
    const scale = width / (view.to - view.from + 1);
    const xOf = (moment: number) => left + (moment + 1 - view.from) * scale;
    const fills = [colour("--hover"), colour("--line")];
    const write = (text: string, x: number, end: number) => {
      const visible = Math.max(x, left);
      const room = Math.min(end, left + width) - visible - 8;
      if (room > 8) {
        ctx.fillStyle = colour("--text");
        ctx.fillText(cut(ctx, text, room), visible + 4, y + BAR / 2 + 0.5);
      }
    };
    const inView = bars.filter(({ from, to }) => from <= view.to && (to ?? from) >= view.from);
    if (inView.length * NARROWEST > width) {
      const first = xOf(inView[0].from);
      const last = xOf(inView.reduce((end, { from, to }) => Math.max(end, to ?? from), 0));
      ctx.fillStyle = fills[0];
      ctx.fillRect(first, y, last - first, BAR);
      write(plural(inView.length, what), first, last);
      return;
    }
    for (const { name, from, to, even } of inView) {
      const x = xOf(from);
      if (to === null) {
        ctx.fillStyle = colour("--muted");
        ctx.fillRect(x, y, 2, BAR);
        continue;
      }
      const end = xOf(to);
      ctx.fillStyle = fills[even ? 0 : 1];
      ctx.fillRect(x, y, Math.max(1, end - x - 1), BAR);
      write(name, x, end);
    }
  }
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

function lanesOf({ steps, annotations }: SubjectHead): Lane[] {
  const lanes = nested(annotations).map((bars): Lane => ({ what: "range", bars }));
  if (steps === null) {
    return lanes;
  }
  const bars = steps.begins.map((from, step): Bar => {
    return { name: String(step + 1), from, to: steps.begins[step + 1] ?? steps.end, even: step % 2 === 0 };
  });
  return [{ what: "step", bars }, ...lanes];
}

/** Annotations in lanes: one within another lies below it. */
function nested(annotations: Annotation[]): Bar[][] {
  const lanes: Bar[][] = [];
  const ends: number[] = [];
  const ordered = [...annotations].sort((a, b) => a.from - b.from || (b.to ?? b.from) - (a.to ?? a.from));
  for (const { name, from, to } of ordered) {
    const free = ends.findIndex((end) => end <= from);
    const index = free >= 0 ? free : Math.min(lanes.length, MOST_LANES - 1);
    const lane = (lanes[index] ??= []);
    lane.push({ name, from, to, even: lane.length % 2 === 0 });
    ends[index] = Math.max(ends[index] ?? 0, to ?? from);
  }
  return lanes;
}
