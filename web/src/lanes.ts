// Steps and annotations below the timeline: what the program was at, as bars over the same moments.

import type { Annotation, SubjectHead } from "./data.ts";
import { el } from "./dom.ts";
import { grouped } from "./format.ts";
import type { Range } from "./range.ts";
import { colour } from "./theme.ts";

const LANE = 17;
const BAR = 14;
/** Annotations within annotations; deeper ones share the last lane. */
const MOST_LANES = 4;

interface Bar {
  name: string;
  from: number;
  /** Null for a mark. */
  to: number | null;
}

export interface Lanes {
  element: HTMLElement;
  draw(head: SubjectHead, view: Range, left: number, width: number, right: number): void;
}

/** `choose` is called with the stretch of a bar that is clicked. */
export function createLanes(choose: (from: number, to: number) => void): Lanes {
  const canvas = el("canvas", { class: "lanes", "aria-hidden": "true" });
  let shown: SubjectHead | null = null;
  let lanes: Bar[][] = [];
  let view: Range = { from: 0, to: 0 };
  let left = 0;
  let width = 1;

  const barAt = ({ offsetX, offsetY }: MouseEvent): Bar | undefined => {
    const at = view.from + ((offsetX - left) / width) * (view.to - view.from + 1);
    const near = ((view.to - view.from + 1) / width) * 3;
    const lane: Bar[] | undefined = lanes[Math.floor(offsetY / LANE)];
    return lane?.find(({ from, to }) => from <= at && at < (to ?? from)) ?? lane?.find(({ from, to }) => to === null && Math.abs(from - at) < near);
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
      if (head.steps !== null) {
        ctx.fillText("steps", left - 8, BAR / 2 + 1);
      }
      if (head.annotations.length > 0) {
        ctx.fillText("ranges", left - 8, (head.steps === null ? 0 : LANE) + BAR / 2 + 1);
      }
      ctx.textAlign = "left";
      ctx.beginPath();
      ctx.rect(left, 0, width, lanes.length * LANE);
      ctx.clip();
      lanes.forEach((bars, lane) => drawLane(ctx, bars, lane));
    },
  };

  function drawLane(ctx: CanvasRenderingContext2D, bars: Bar[], lane: number): void {
    const y = lane * LANE + 1;
    const scale = width / (view.to - view.from + 1);
    const fills = [colour("--hover"), colour("--line")];
    const ink = colour("--text");
    let drawnTo = -Infinity;
    bars.forEach(({ name, from, to }, index) => {
      if (from > view.to || (to ?? from) < view.from) {
        return;
      }
      const x = left + (from + 1 - view.from) * scale;
      const end = to === null ? x + 2 : left + (to + 1 - view.from) * scale;
      // Many in one pixel look like one.
      if (end - drawnTo < 0.5) {
        return;
      }
      drawnTo = Math.max(drawnTo, end);
      ctx.fillStyle = to === null ? colour("--muted") : fills[index % 2];
      ctx.fillRect(x, y, Math.max(1, end - x - (end - x > 3 ? 1 : 0)), BAR);
      const visible = Math.max(x, left);
      const room = Math.min(end, left + width) - visible - 8;
      if (to !== null && room > 8) {
        const text = cut(ctx, name, room);
        ctx.fillStyle = ink;
        ctx.fillText(text, visible + 4, y + BAR / 2 + 0.5);
      }
    });
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

function lanesOf({ steps, annotations }: SubjectHead): Bar[][] {
  const ofSteps = steps?.begins.map((from, step): Bar => {
    return { name: String(step + 1), from, to: steps.begins[step + 1] ?? steps.end };
  });
  return [...(ofSteps === undefined ? [] : [ofSteps]), ...nested(annotations)];
}

/** Annotations in lanes: one within another lies below it. */
function nested(annotations: Annotation[]): Bar[][] {
  const lanes: Bar[][] = [];
  const ends: number[] = [];
  const ordered = [...annotations].sort((a, b) => a.from - b.from || (b.to ?? b.from) - (a.to ?? a.from));
  for (const { name, from, to } of ordered) {
    const free = ends.findIndex((end) => end <= from);
    const lane = free >= 0 ? free : Math.min(lanes.length, MOST_LANES - 1);
    (lanes[lane] ??= []).push({ name, from, to });
    ends[lane] = Math.max(ends[lane] ?? 0, to ?? from);
  }
  return lanes;
}
