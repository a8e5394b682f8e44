// Lines of bytes over a common axis: uPlot with the page's colours, a readout in words, and the keyboard.

import uPlot from "uplot";
import { el, fill } from "./dom.ts";
import { bytes } from "./format.ts";
import { onPaper, widthFor } from "./paper.ts";
import { colour } from "./theme.ts";

export interface Series {
  name: string;
  colour: string;
  /** One for each point of the axis; null: nothing is known there. */
  values: ArrayLike<number | null>;
  width?: number;
  dash?: number[];
  /** A colour for the area below. */
  fill?: string;
}

export interface Axis {
  points: ArrayLike<number>;
  /** What a value is called, short for the axis and long for the readout. */
  short(value: number): string;
  long(value: number): string;
}

export interface LineChart {
  element: HTMLElement;
  show(axis: Axis, series: readonly Series[]): void;
}

const HINT = "Point at the chart or use the arrow keys to read it.";
const PICK_HINT = "Point at the chart or use the arrow keys to read it; a click or Enter chooses the moment.";
/** Share of the points that an arrow key moves by. */
const KEY_STEP = 0.01;
/** Steps of the axis of bytes: powers of two, that read as whole numbers. */
const STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

/** A chart; `pick` is called with the value of the axis that was clicked or chosen with Enter. */
export function lineChart(label: string, height: number, pick: ((value: number) => void) | null): LineChart {
  const plot = el("div", { class: "chart-plot" });
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const element = el(
    "div",
    { class: "chart line-chart", tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-label": label },
    plot,
    readout,
  );
  let chart: uPlot | null = null;
  let axis: Axis = { points: [], short: String, long: String };
  let series: readonly Series[] = [];
  let at = -1;

  function showValues(index: number | null | undefined): void {
    const known = index !== null && index !== undefined && index >= 0 && index < axis.points.length;
    if (known) {
      at = index;
    }
    const names = series.flatMap((one) => {
      const value = known ? one.values[index] : undefined;
      if (known && (value === null || value === undefined)) {
        return [];
      }
      const mark = el("span", { class: `swatch line${one.dash ? " dashed" : ""}`, "aria-hidden": "true" });
      mark.style.borderTopColor = one.colour;
      return [
        el(
          "span",
          { class: "chart-value" },
          mark,
          `${one.name} `,
          value !== undefined && value !== null && el("b", {}, bytes(value)),
        ),
      ];
    });
    fill(
      readout,
      ...names,
      el(
        "span",
        { class: known ? "muted" : "muted hint" },
        known ? axis.long(axis.points[index]!) : pick ? PICK_HINT : HINT,
      ),
    );
  }

  const width = (): number => Math.max(200, widthFor(element));

  function draw(): void {
    chart?.destroy();
    const ink = colour("--muted");
    const line = { stroke: colour("--grid"), width: 1 };
    const options: uPlot.Options = {
      width: width(),
      height,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: false }, y: { range: (_, __, most) => [0, Math.max(1, most * 1.05)] } },
      axes: [
        {
          stroke: ink,
          grid: { show: false },
          ticks: line,
          size: 30,
          values: (_, values) => values.map((value) => axis.short(value)),
          font: font(),
        },
        {
          stroke: ink,
          grid: line,
          ticks: line,
          incrs: STEPS,
          size: 74,
          values: (_, values) => values.map((value) => bytes(value)),
          font: font(),
        },
      ],
      series: [
        {},
        ...series.map((one) => ({
          label: one.name,
          stroke: one.colour,
          width: one.width ?? 1.5,
          points: { show: false },
          ...(one.dash ? { dash: one.dash } : {}),
          ...(one.fill ? { fill: one.fill } : {}),
          paths: uPlot.paths.stepped!({ align: 1 }),
        })),
      ],
      hooks: { setCursor: [(self) => showValues(self.cursor.idx)] },
    };
    chart = new uPlot(options, [Array.from(axis.points), ...series.map((one) => Array.from(one.values))], plot);
    if (pick) {
      chart.over.addEventListener("click", () => choose());
    }
    showValues(null);
  }

  function choose(): void {
    const value = axis.points[at];
    if (pick && value !== undefined) {
      pick(value);
    }
  }

  function font(): string {
    return `11px ${getComputedStyle(element).fontFamily}`;
  }

  element.addEventListener("keydown", (event) => {
    const step = Math.max(1, Math.round(axis.points.length * KEY_STEP));
    const last = axis.points.length - 1;
    const moves: Record<string, number> = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: last };
    const next = moves[event.key];
    if (next !== undefined && chart) {
      event.preventDefault();
      const index = Math.max(0, Math.min(last, next));
      chart.setCursor({ left: chart.valToPos(axis.points[index]!, "x"), top: 0 });
      showValues(index);
    } else if (event.key === "Enter" && pick) {
      choose();
    }
  });
  const resize = (): void => {
    if (chart && Math.abs(chart.width - width()) > 1) {
      chart.setSize({ width: width(), height });
    }
  };
  new ResizeObserver(resize).observe(element);
  onPaper(resize);

  return {
    element,
    show(newAxis, newSeries) {
      [axis, series] = [newAxis, newSeries];
      draw();
    },
  };
}
