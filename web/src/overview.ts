// The whole recording in a strip, with a frame around what the timeline shows. The frame can be dragged.

import { eachFrame, el } from "./dom.ts";
import type { Memory } from "./memory.ts";
import type { Range } from "./range.ts";
import { moved } from "./range.ts";
import type { Scale } from "./scale.ts";
import { colour } from "./theme.ts";

const HEIGHT = 34;

export interface Overview {
  element: HTMLElement;
  draw(memory: Memory, scale: Scale, view: Range, left: number, width: number, right: number): void;
}

export function createOverview(show: (view: Range) => void): Overview {
  // The keyboard has other ways to everything that this does.
  const canvas = el("canvas", { class: "overview", "aria-hidden": "true" });
  let known: { memory: Memory; by: Scale["by"]; width: number; heights: Float64Array } | null = null;
  let view: Range = { from: 0, to: 0 };
  let last = 0;
  let left = 0;
  let width = 1;

  canvas.addEventListener("pointerdown", (event) => {
    const perPixel = (last + 1) / width;
    const at = (event.offsetX - left) * perPixel;
    // Beside the frame, the frame comes to the mouse.
    const inside = view.from <= at && at <= view.to;
    const start = inside ? view : moved(view, at - (view.from + view.to) / 2, last);
    const from = event.clientX;
    let clientX = from;
    const follow = eachFrame(() => show(moved(start, (clientX - from) * perPixel, last)));
    const move = (next: PointerEvent) => {
      clientX = next.clientX;
      follow();
    };
    follow();
    canvas.setPointerCapture(event.pointerId);
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("lostpointercapture", () => canvas.removeEventListener("pointermove", move), {
      once: true,
    });
  });

  return {
    element: canvas,
    draw(memory, scale, range, plotLeft, plotWidth, right) {
      [view, last, left, width] = [range, scale.end, plotLeft, plotWidth];
      if (known?.memory !== memory || known.width !== width || known.by !== scale.by) {
        const { allocated } = memory.timeline("kind", 0, last, Math.floor(width), scale);
        known = { memory, by: scale.by, width, heights: allocated };
      }
      const ratio = devicePixelRatio;
      const total = left + width + right;
      canvas.width = Math.round(total * ratio);
      canvas.height = HEIGHT * ratio;
      canvas.style.width = `${total}px`;
      canvas.style.height = `${HEIGHT}px`;
      const ctx = canvas.getContext("2d");
      if (ctx === null) {
        return;
      }
      ctx.scale(ratio, ratio);
      const { heights } = known;
      const most = heights.reduce((a, b) => Math.max(a, b), 1);
      const column = width / heights.length;
      ctx.fillStyle = colour("--panel");
      ctx.fillRect(left, 0, width, HEIGHT);
      ctx.fillStyle = colour("--muted");
      ctx.globalAlpha = 0.45;
      ctx.beginPath();
      ctx.moveTo(left, HEIGHT);
      heights.forEach((bytes, i) => {
        const y = HEIGHT - (bytes / most) * (HEIGHT - 3);
        ctx.lineTo(left + i * column, y);
        ctx.lineTo(left + (i + 1) * column, y);
      });
      ctx.lineTo(left + width, HEIGHT);
      ctx.fill();
      ctx.globalAlpha = 1;
      const x = left + (view.from / (last + 1)) * width;
      const framed = Math.max(3, ((view.to - view.from + 1) / (last + 1)) * width);
      ctx.fillStyle = colour("--accent");
      ctx.globalAlpha = 0.16;
      ctx.fillRect(x, 0, framed, HEIGHT);
      ctx.globalAlpha = 1;
      ctx.strokeStyle = colour("--accent");
      ctx.strokeRect(x + 0.5, 0.5, framed - 1, HEIGHT - 1);
    },
  };
}
