// The timeline: what was allocated over the whole recording or a part of it, by kind or by source line.
//
// Every view is summed again from all allocations, one column for each pixel, so nothing is ever left out. This is where
// the moment and the stretch are chosen that the other views show.

import { beside, firstMoments } from "./annotation.ts";
import { createAnnotations } from "./annotation-list.ts";
import type { App } from "./app.ts";
import type { Area } from "./chart.ts";
import { createChart, LEFT, RIGHT } from "./chart.ts";
import { choice, eachFrame, el, fill, swatch } from "./dom.ts";
import { factsOf } from "./facts.ts";
import { bytes, grouped, plural, timeWithin } from "./format.ts";
import { createLanes } from "./lanes.ts";
import type { Entry } from "./legend.ts";
import { createLegend, lineMark } from "./legend.ts";
import type { Group, Memory, Timeline } from "./memory.ts";
import { durationInWords } from "./moment.ts";
import { createOverview } from "./overview.ts";
import { Palette } from "./palette.ts";
import { onPaper, widthFor } from "./paper.ts";
import type { Range } from "./range.ts";
import { around, columnsAway, including, moved, zoomed } from "./range.ts";
import type { State } from "./state.ts";
import { createTip } from "./tip.ts";

/** The most groups that are shown by line: the largest lines, and all others. */
const MOST_LINES = 11;
const PAGE_OF_COLUMNS = 20;
/** Milliseconds between the two clicks of a double click. */
const DOUBLE = 500;
/** Milliseconds of rest before the chosen moment is said. */
const REST = 250;
const RESERVED = "reserved";
const LIMIT = "limit";

const KEYS: [keys: string[], what: string][] = [
  [["←", "→"], "move the moment by a column"],
  [["Shift", "←", "→"], "by an event"],
  [["+", "−"], "zoom"],
  [["Home", "End"], "first and last moment"],
  [["p"], "peak"],
  [["n", "N"], "next and previous step"],
  [["s"], "zoom to the step"],
  [["r", "R"], "next and previous annotation"],
  [["Esc"], "show all"],
];

export function mount(host: HTMLElement, app: App): void {
  const { store, page } = app;
  const palette = new Palette();
  let width = 0;
  let timeline: Timeline | null = null;
  let summedOf: Memory | null = null;
  let areas: (Group & Area & { id: string })[] = [];

  const events = () => app.memory().head.events;
  const everything = (): Range => ({ from: 0, to: events() });
  const chooseMoment = (moment: number): void => {
    const kept = Math.max(0, Math.min(moment, events()));
    store.set({ moment: kept, ...including(store.state, kept, events()) });
  };
  const zoomBy = (factor: number) => () => store.set(zoomed(store.state, anchor(store.state), factor, events()));

  // Two clicks show all again; the first of them must not have chosen a moment.
  let clicked = { at: -Infinity, before: store.state.moment };
  const chart = createChart(Math.max(MOST_LINES, page.kinds.length), {
    hover(column, x) {
      if (column === null || timeline === null) {
        tip.hide();
      } else {
        tip.show(app.memory(), timeline, shownAreas(), column, x, width);
      }
    },
    choose(moment) {
      const now = performance.now();
      clicked = { at: now, before: now - clicked.at > DOUBLE ? store.state.moment : clicked.before };
      store.set({ moment });
    },
    select(from, to) {
      const start = Math.max(0, Math.floor(from));
      const end = Math.min(events(), Math.max(start + 1, Math.ceil(to)));
      store.set(zoomed({ from: start, to: end }, (start + end) / 2, 1, events()));
    },
    zoom(at, factor) {
      const { from, to } = store.state;
      store.set(zoomed(store.state, at, factor, events()));
      return factor < 1 || store.state.from !== from || store.state.to !== to;
    },
    pan: (by) => store.set(moved(store.state, by, events())),
    reset() {
      const moment = performance.now() - clicked.at < DOUBLE ? clicked.before : store.state.moment;
      store.set({ ...everything(), moment });
    },
  });
  const lanes = createLanes((from, to) => store.set(around(from, to, events())));
  const annotations = createAnnotations((from, to) => store.set(around(from, to, events())));
  const overview = createOverview((view) => store.set(view));
  const tip = createTip();
  const legend = createLegend(() => {
    drawChart();
    drawMoment();
  });

  const readout = el("p", { class: "readout" });
  const stretch = el("span", { class: "muted", role: "status" });
  const elsewhere = el("span", { role: "status" });
  const away = el(
    "span",
    { class: "away" },
    elsewhere,
    el("button", { type: "button", onclick: () => chooseMoment(store.state.moment) }, "Show it"),
  );
  const showAll = el("button", { type: "button", onclick: () => store.set(everything()) }, "Show all");
  const toolbar = el(
    "div",
    { class: "toolbar" },
    choice(
      "Stacked by",
      [
        ["kind", "Kind"],
        ["line", "Source line"],
      ],
      store.state.by,
      (by) => store.set({ by }),
    ),
    el("button", { type: "button", onclick: zoomBy(0.5), "aria-label": "Zoom in" }, "+"),
    el("button", { type: "button", onclick: zoomBy(2), "aria-label": "Zoom out" }, "−"),
    showAll,
    el("button", { type: "button", onclick: () => chooseMoment(app.memory().head.peak.allocated.moment) }, "Peak"),
    stretch,
    away,
  );
  const slider = {
    tabindex: "0",
    role: "slider",
    "aria-label": "Moment of the timeline",
    "aria-describedby": "timeline-keys",
    "aria-valuemin": "0",
  };
  Object.entries(slider).forEach(([name, value]) => chart.element.setAttribute(name, value));
  chart.element.append(tip.element);
  host.append(
    toolbar,
    readout,
    chart.element,
    lanes.element,
    overview.element,
    legend.element,
    annotations.element,
    help(),
  );

  chart.element.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : action(event);
    if (act !== undefined) {
      event.preventDefault();
      act();
    }
  });

  function action({ key, shiftKey }: KeyboardEvent): (() => void) | undefined {
    const { head } = app.memory();
    const step = (by: number) => () => chooseMoment(shiftKey ? store.state.moment + by : columnBeside(by));
    switch (key) {
      case "ArrowLeft":
      case "ArrowDown":
        return step(-1);
      case "ArrowRight":
      case "ArrowUp":
        return step(1);
      case "PageDown":
        return () => chooseMoment(columnBeside(PAGE_OF_COLUMNS));
      case "PageUp":
        return () => chooseMoment(columnBeside(-PAGE_OF_COLUMNS));
      case "Home":
        return () => chooseMoment(0);
      case "End":
        return () => chooseMoment(head.events);
      case "+":
      case "=":
        return zoomBy(0.5);
      case "-":
      case "_":
        return zoomBy(2);
      case "p":
        return () => chooseMoment(head.peak.allocated.moment);
      case "n":
        return () => chooseMoment(stepBeside(1));
      case "N":
        return () => chooseMoment(stepBeside(-1));
      case "s":
        return zoomToStep;
      case "r":
        return () => chooseMoment(annotationBeside(1));
      case "R":
        return () => chooseMoment(annotationBeside(-1));
      case "Escape":
        return () => store.set(everything());
      default:
        return undefined;
    }
  }

  const columnBeside = (by: number): number => columnsAway(summed(), store.state.moment, by);

  /** The first moment of the step after or before the chosen moment's. */
  function stepBeside(by: 1 | -1): number {
    const firsts = app.memory().head.steps?.begins.map((begin) => begin + 1) ?? [];
    return beside(firsts, store.state.moment, by);
  }

  function annotationBeside(by: 1 | -1): number {
    return beside(firstMoments(app.memory().annotations), store.state.moment, by);
  }

  function zoomToStep(): void {
    const { steps } = app.memory().head;
    const step = app.memory().stepOf(store.state.moment);
    if (steps !== null && step !== null) {
      store.set(around(steps.begins[step - 1], steps.begins[step] ?? steps.end, events()));
    }
  }

  /** The view as it is now: a key may come in the same frame as a zoom, before that is drawn. */
  function summed(): Timeline {
    const { by, from, to } = store.state;
    if (
      timeline === null ||
      summedOf !== app.memory() ||
      timeline.by !== by ||
      timeline.from !== from ||
      timeline.to !== to
    ) {
      return sum();
    }
    return timeline;
  }

  const shownAreas = () => areas.filter(({ id }) => !legend.hides(id));

  function sum(): Timeline {
    const { by, from, to } = store.state;
    summedOf = app.memory();
    timeline = summedOf.timeline(by, from, to, chart.columns());
    const keys = timeline.groups.map(({ key }) => key);
    const colours = by === "kind" ? keys.map((kind) => page.kinds[kind].colour) : palette.colours(keys);
    areas = timeline.groups.map((group, i) => ({ ...group, id: `${by} ${group.key}`, colour: colours[i] }));
    return timeline;
  }

  function drawChart(): void {
    const memory = app.memory();
    const { head } = memory;
    const { from, to } = store.state;
    if (timeline === null) {
      return;
    }
    const lasts = (memory.timeOf(to) ?? 0) - (memory.timeOf(from) ?? 0);
    const timeLabel = (moment: number): string | null => {
      const time = memory.timeOf(moment);
      return time === null ? null : timeWithin(time, lasts, memory.timeError);
    };
    chart.draw({
      timeline,
      areas: shownAreas(),
      reserved: !legend.hides(RESERVED),
      limit: !legend.hides(LIMIT),
      head,
      timeLabel,
    });
    const plot = Math.max(1, width - LEFT - RIGHT);
    lanes.draw(memory, { from, to }, LEFT, plot, RIGHT);
    overview.draw(memory, { from, to }, LEFT, plot, RIGHT);
    annotations.draw(memory.annotations);
    showAll.disabled = from === 0 && to === head.events;
    const whole = showAll.disabled
      ? `All ${plural(head.events, "event")}`
      : `Events ${grouped(from)} to ${grouped(to)} of ${grouped(head.events)}`;
    const duration = durationInWords(memory, from, to);
    stretch.textContent = duration === null ? whole : `${whole}, ${duration}`;
  }

  function drawMoment(): void {
    const memory = app.memory();
    const { moment } = store.state;
    const facts = factsOf(memory, moment);
    chart.mark(moment);
    const { from, to } = store.state;
    const side = moment < from ? "left" : moment > to ? "right" : null;
    away.hidden = side === null;
    elsewhere.textContent = side === null ? "" : `The chosen moment, ${grouped(moment)}, is ${side} of this view. `;
    chart.element.setAttribute("aria-valuemax", String(memory.head.events));
    chart.element.setAttribute("aria-valuenow", String(moment));
    chart.element.setAttribute("aria-valuetext", facts.join(", "));
    fill(readout, ...facts.map((fact, i) => el(i === 0 ? "b" : "span", {}, fact)));
    legend.draw(legendAt(memory, moment));
  }

  function legendAt(memory: Memory, moment: number): Entry[] {
    const { limit } = memory.head;
    const held = heldBy(
      memory,
      moment,
      areas.map(({ key }) => key),
    );
    return [
      ...areas.map(({ id, key, name, colour }) => ({
        id,
        name,
        mark: swatch(colour),
        value: bytes(held.get(key) ?? 0),
      })),
      { id: RESERVED, name: "reserved", mark: lineMark(false), value: bytes(memory.reservedAt(moment)) },
      ...(limit === null
        ? []
        : [
            {
              id: LIMIT,
              name: limit.text,
              mark: lineMark(true),
              value: bytes(limit.bytes) + (chart.limitIsBeyond() ? ", beyond the picture" : ""),
            },
          ]),
    ];
  }

  /** What groups hold at a moment, by their keys. */
  function heldBy(memory: Memory, moment: number, keys: number[]): Map<number, number> {
    const held = new Map<number, number>();
    const add = (key: number, size: number) => held.set(key, (held.get(key) ?? 0) + size);
    if (store.state.by === "kind") {
      memory.kindsAt(moment).forEach((one) => add(one.kind, one.bytes));
    } else {
      const apart = new Set(keys);
      memory.linesAt(moment).forEach((one) => add(apart.has(one.line) ? one.line : -1, one.bytes));
    }
    return held;
  }

  function redraw(): void {
    sum();
    drawChart();
    drawMoment();
  }
  const redrawSoon = eachFrame(redraw);
  const drawMomentSoon = eachFrame(drawMoment);

  const resize = () => {
    const to = widthFor(host);
    if (to > 0 && to !== width) {
      width = to;
      chart.resize(to);
      redraw();
    }
  };
  new ResizeObserver(resize).observe(host);
  onPaper(resize);
  app.onTheme(drawChart);

  let saying: ReturnType<typeof setTimeout> | undefined;
  store.on((now, before) => {
    if (now.subject !== before.subject) {
      legend.showAll();
    }
    if (now.subject !== before.subject || now.from !== before.from || now.to !== before.to || now.by !== before.by) {
      tip.hide();
      redrawSoon();
    }
    if (now.moment !== before.moment) {
      // Another view may have chosen a moment out of sight.
      store.set(including(now, now.moment, events()));
      drawMomentSoon();
      clearTimeout(saying);
      saying = setTimeout(() => app.announce(factsOf(app.memory(), store.state.moment).join(", ")), REST);
    }
  });

  resize();
  for (const picture of document.querySelectorAll<HTMLElement>(".static-picture")) {
    picture.hidden = true;
  }
}

/** Zooming keeps the chosen moment in its place, if it is in view. */
function anchor({ moment, from, to }: Readonly<State>): number {
  return from <= moment && moment <= to ? moment : (from + to) / 2;
}

function help(): HTMLElement {
  const keys = KEYS.flatMap(([pressed, what]) => [...pressed.flatMap((key) => [el("kbd", {}, key), " "]), `${what}. `]);
  const mouse =
    "Drag to zoom, Shift and drag to move, wheel to zoom, click to choose a moment, double click to show all. ";
  return el(
    "details",
    { class: "keys" },
    el("summary", {}, "Mouse and keyboard"),
    el("p", { id: "timeline-keys" }, mouse, "With the chart in focus: ", ...keys),
  );
}
