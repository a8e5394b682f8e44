// The timeline's picture: what was allocated in stacked areas, what was reserved as a line, and marks. It shows what the
// reader does with the mouse, and decides nothing.

import uPlot from "uplot";
import type { SubjectHead } from "./data.ts";
import { eachFrame, el } from "./dom.ts";
import { bytes } from "./format.ts";
import type { Timeline } from "./memory.ts";
import { isPrinting } from "./paper.ts";
import type { Scale } from "./scale.ts";
import { countUpTo } from "./sorting.ts";
import { colour } from "./theme.ts";

export const LEFT = 68;
export const RIGHT = 40;
const HEIGHT = 300;
const FONT = "11px system-ui, sans-serif";
/** A limit higher than this many times what there is to see is not drawn: it would press the rest flat. */
const WORTH_SHOWING = 2.2;
/** Of the second line. */
const DASHES = [4, 3];
/** More steps than this in a view have no lines of their own. */
const MOST_STEP_LINES = 60;

export interface Area {
  colour: string;
  bytes: Float64Array;
}

export interface Picture {
  timeline: Timeline;
  /** From the bottom up. */
  areas: Area[];
  /** Over the areas: the first is drawn through, the second dashed; null: hidden. */
  lines: (Float64Array | null)[];
  limit: boolean;
  head: SubjectHead;
  scale: Scale;
  /** What a position is called on the axis, in one line or several, the most important first. */
  label: (position: number) => string[];
}

export interface Gestures {
  /** The column under the mouse; null when it leaves. `x` is within the chart. */
  hover(column: number | null, x: number): void;
  /** A moment was clicked. The position is its own, or the mouse's where nothing happened there. */
  choose(moment: number, position: number): void;
  select(from: number, to: number): void;
  /** A factor below 1 shows less. */
  zoom(at: number, factor: number): boolean;
  pan(moments: number): void;
  reset(): void;
}

export interface Chart {
  element: HTMLElement;
  draw(picture: Picture): void;
  resize(width: number): void;
  /** Puts the mark of the chosen moment, at a position. */
  mark(position: number): void;
  /** How many columns there is room for. */
  columns(): number;
  /** Whether the limit is too far above what there is to see. */
  limitIsBeyond(): boolean;
}

function isShown({ from, to }: { from: number; to: number }, position: number): boolean {
  return from <= position && position <= to;
}

/** Whether pressing the mouse so moves the view, rather than selecting a part of it. */
function pans({ shiftKey, button }: MouseEvent): boolean {
  return shiftKey || button === 1;
}

export function createChart(slots: number, gestures: Gestures): Chart {
  let picture: Picture | null = null;
  let top = 1;
  let marked = 0;
  let plotWidth = 1;
  const mark = el("div", { class: "moment-mark" });

  const stepped = uPlot.paths.stepped!({ align: 1 });
  const areaAt = (slot: number): Area | undefined => picture?.areas[slots - slot];
  const areas = Array.from({ length: slots }, (_, index): uPlot.Series => {
    return {
      scale: "y",
      width: 0,
      fill: () => areaAt(index + 1)?.colour ?? "transparent",
      paths: stepped,
      points: { show: false },
    };
  });
  const lines = [[], DASHES].map((dash): uPlot.Series => {
    return { scale: "y", width: 1.5, stroke: () => colour("--text"), paths: stepped, points: { show: false }, dash };
  });

  const ink = () => colour("--muted");
  const grid = { stroke: () => colour("--grid"), width: 1 };
  const chart = new uPlot(
    {
      width: 600,
      height: HEIGHT,
      padding: [16, RIGHT, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, range: () => (picture === null ? [0, 1] : [picture.timeline.from, picture.timeline.to + 1]) },
        y: { range: () => [0, top] },
      },
      axes: [
        {
          stroke: ink,
          grid: { show: false },
          ticks: { ...grid, size: 4 },
          font: FONT,
          size: 40,
          space: 110,
          incrs: Array.from({ length: 14 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat(),
          values: (plot, splits) => splits.map((position) => labelAt(plot, position)),
        },
        {
          stroke: ink,
          grid,
          ticks: { show: false },
          font: FONT,
          size: LEFT,
          space: 36,
          incrs: Array.from({ length: 52 }, (_, power) => 2 ** power),
          values: (_, splits) => splits.map(bytes),
        },
      ],
      series: [{}, ...areas, ...lines],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: 4 },
        bind: {
          mousedown: (_, __, handler) => (event) => (pans(event) ? null : handler(event)),
          dblclick: () => () => {
            gestures.reset();
            return null;
          },
        },
      },
      hooks: {
        drawAxes: [drawSteps],
        draw: [drawMarks],
        setCursor: [
          (plot) => {
            const { left } = plot.cursor;
            const inside = left !== undefined && left >= 0 && picture !== null;
            gestures.hover(inside ? columnAt(left) : null, LEFT + (left ?? 0));
          },
        ],
        setSelect: [
          (plot) => {
            const { left, width } = plot.select;
            if (width >= 4) {
              gestures.select(plot.posToVal(left, "x"), plot.posToVal(left + width, "x") - 1);
            }
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
      },
    },
    [[], ...Array.from({ length: slots + lines.length }, () => [])],
  );
  const element = el("div", { class: "chart" });
  element.append(chart.root);
  chart.over.append(mark);

  /** Event and time; only what has room before the picture ends. */
  function labelAt(plot: uPlot, position: number): string {
    if (position > (picture?.timeline.to ?? 0)) {
      return ""; // where the last moment ends
    }
    const room = 2 * (plot.width - LEFT - plot.valToPos(position, "x"));
    plot.ctx.save();
    plot.ctx.font = FONT;
    const parts = (picture?.label(position) ?? []).filter(
      (text) => text !== "" && plot.ctx.measureText(text).width <= room,
    );
    plot.ctx.restore();
    return parts.join("\n");
  }

  function columnAt(left: number): number {
    const starts = picture?.timeline.starts ?? [];
    return Math.max(0, countUpTo(starts, chart.posToVal(left, "x")) - 1);
  }

  let pressedAt = 0;
  chart.over.addEventListener("mousedown", (event) => {
    pressedAt = event.clientX;
    if (pans(event)) {
      startPan(event);
    }
  });
  chart.over.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - pressedAt) < 4 && !event.shiftKey && picture !== null) {
      const left = event.clientX - chart.over.getBoundingClientRect().left;
      const column = columnAt(left);
      const moment = picture.timeline.tops[column];
      const own = picture.scale.of(moment);
      gestures.choose(moment, own >= picture.timeline.starts[column] ? own : chart.posToVal(left, "x"));
    }
  });

  const perPixel = () => (picture === null ? 0 : (picture.timeline.to - picture.timeline.from + 1) / plotWidth);

  function startPan(event: MouseEvent): void {
    event.preventDefault();
    let last = event.clientX;
    let pending = 0;
    const flush = eachFrame(() => {
      gestures.pan(pending);
      pending = 0;
    });
    const move = ({ clientX }: MouseEvent) => {
      pending += (last - clientX) * perPixel();
      last = clientX;
      flush();
    };
    const stop = () => {
      element.classList.remove("panning");
      document.removeEventListener("mousemove", move);
      document.removeEventListener("mouseup", stop);
    };
    element.classList.add("panning");
    document.addEventListener("mousemove", move);
    document.addEventListener("mouseup", stop);
  }

  chart.over.addEventListener(
    "wheel",
    (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (sideways) {
        event.preventDefault();
        gestures.pan((event.deltaX || event.deltaY) * perPixel());
        return;
      }
      const at = chart.posToVal(event.clientX - chart.over.getBoundingClientRect().left, "x");
      const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 30 : 1;
      const factor = Math.exp(Math.max(-300, Math.min(300, event.deltaY * lines)) * 0.0025);
      // All is shown already: the wheel scrolls the page on.
      if (gestures.zoom(at, factor)) {
        event.preventDefault();
      }
    },
    { passive: false },
  );

  function drawSteps(plot: uPlot): void {
    const steps = picture?.head.steps;
    if (picture === null || steps === null || steps === undefined) {
      return;
    }
    const { timeline, scale } = picture;
    const first = countUpTo(steps.begins, scale.at(timeline.from));
    const shown = steps.begins.slice(first, countUpTo(steps.begins, scale.at(timeline.to)));
    if (shown.length > MOST_STEP_LINES) {
      return;
    }
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("--line");
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    for (const begin of shown) {
      const x = Math.round(plot.valToPos(scale.of(begin + 1), "x", true)) + 0.5;
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
    }
    ctx.stroke();
    ctx.restore();
  }

  function drawMarks(plot: uPlot): void {
    if (picture === null) {
      return;
    }
    const { head, timeline, scale } = picture;
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    const inView = (moment: number) => isShown(timeline, scale.of(moment));
    const xOf = (moment: number) => plot.valToPos(scale.of(moment) + 0.5, "x", true);
    ctx.save();
    ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.lineWidth = 1.5 * ratio;

    // Beside a mark rather than over it, and within the chart.
    const write = (text: string, x: number, y: number, ink: string) => {
      const width = ctx.measureText(text).width;
      const beside = 7 * ratio;
      const left = x + beside + width <= bbox.left + bbox.width ? x + beside : x - beside - width;
      ctx.lineJoin = "round";
      ctx.lineWidth = 3 * ratio;
      ctx.strokeStyle = colour("--bg");
      ctx.strokeText(text, left, y);
      ctx.fillStyle = ink;
      ctx.fillText(text, left, y);
      ctx.lineWidth = 1.5 * ratio;
    };

    if (picture.limit && head.limit !== null && head.limit.bytes <= top) {
      const y = Math.round(plot.valToPos(head.limit.bytes, "y", true));
      ctx.strokeStyle = colour("--error");
      ctx.setLineDash([6 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.setLineDash([]);
      write(`limit ${bytes(head.limit.bytes)}`, bbox.left, y - 4 * ratio, colour("--error"));
    }

    const drawn = new Set<number>();
    for (const oom of head.ooms) {
      const x = Math.round(xOf(oom.moment));
      if (!inView(oom.moment) || (drawn.has(x) && !oom.fatal)) {
        continue;
      }
      drawn.add(x);
      ctx.strokeStyle = ctx.fillStyle = colour("--error");
      ctx.setLineDash(oom.fatal ? [] : [3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.arc(x, bbox.top, 3.5 * ratio, 0, 2 * Math.PI);
      ctx.fill();
      if (oom.fatal) {
        write("out of memory", x, bbox.top - 6 * ratio, colour("--error"));
      }
    }

    const { moment, bytes: most } = head.peak.allocated;
    if (inView(moment)) {
      const x = xOf(moment);
      const y = plot.valToPos(most, "y", true);
      ctx.beginPath();
      ctx.arc(x, y, 4 * ratio, 0, 2 * Math.PI);
      ctx.fillStyle = colour("--text");
      ctx.strokeStyle = colour("--bg");
      ctx.fill();
      ctx.stroke();
      write(`peak ${bytes(most)}`, x, Math.max(y - 5 * ratio, bbox.top + 10 * ratio), colour("--text"));
    }
    // On the screen an element marks it, which moves without drawing all again; paper may be wider than the screen was.
    if (isPrinting() && isShown(timeline, marked)) {
      const x = Math.round(plot.valToPos(marked + 0.5, "x", true));
      ctx.strokeStyle = colour("--accent");
      ctx.lineWidth = ratio;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function place(): void {
    const view = picture?.timeline ?? { from: 0, to: -1 };
    const { from, to } = view;
    mark.hidden = !isShown(view, marked);
    mark.style.left = `${((marked + 0.5 - from) / (to + 1 - from)) * plotWidth - 0.5}px`;
  }

  return {
    element,
    draw(next) {
      picture = next;
      const { timeline } = next;
      const x = [...timeline.starts, timeline.to + 1];
      const stacks: (Float64Array | null)[] = [];
      let below = new Float64Array(x.length);
      for (const { bytes: held } of next.areas) {
        const sum = below.slice();
        held.forEach((value, column) => {
          sum[column] += value;
        });
        // A step needs its end.
        sum[x.length - 1] = sum[x.length - 2];
        stacks.push(sum);
        below = sum;
      }
      const drawn = lines.map((_, index) => {
        const line = next.lines[index] ?? null;
        return line && Float64Array.from(x, (_, i) => line[Math.min(i, x.length - 2)]);
      });
      const highest = [below, ...drawn].reduce((most, line) => line?.reduce((a, b) => Math.max(a, b), most) ?? most, 0);
      const limit = next.limit ? (next.head.limit?.bytes ?? 0) : 0;
      top = Math.max(1, limit <= highest * WORTH_SHOWING ? Math.max(highest, limit) : highest) * 1.06;
      const nothing = new Array<null>(x.length).fill(null);
      // The highest stack is drawn first, the lower ones over it.
      const inOrder = Array.from({ length: slots }, (_, index) => stacks[slots - 1 - index] ?? nothing);
      chart.setData([x, ...inOrder, ...drawn.map((line) => line ?? nothing)]);
      place();
    },
    resize(width) {
      plotWidth = Math.max(1, width - LEFT - RIGHT);
      chart.setSize({ width, height: HEIGHT });
      place();
    },
    mark(position) {
      marked = position;
      place();
    },
    columns: () => Math.floor(plotWidth),
    limitIsBeyond: () => (picture?.head.limit?.bytes ?? 0) > top,
  };
}
