// The timeline: what was allocated over the whole recording or a part of it, by kind or by source line.
//
// Every view is summed again from all allocations, one column for each pixel, so nothing is ever left out. This is where
// the moment and the stretch are chosen that the other views show.

import { beside, firstMoments } from "./annotation.ts";
import { createAnnotations } from "./annotation-list.ts";
import type { App } from "./app.ts";
import { createBeside } from "./beside.ts";
import type { Gestures } from "./chart.ts";
import { createChart, LEFT, RIGHT } from "./chart.ts";
import { choice, eachFrame, el, fill } from "./dom.ts";
import { factsOf } from "./facts.ts";
import { grouped, plural, seconds, timeWithin } from "./format.ts";
import type { Shown } from "./groups.ts";
import { areasOf, entriesAt, FILES, LIMIT, RESERVED } from "./groups.ts";
import { createLanes } from "./lanes.ts";
import { createLegend } from "./legend.ts";
import type { Memory, Timeline } from "./memory.ts";
import { durationInWords } from "./moment.ts";
import { createOverview } from "./overview.ts";
import { Palette } from "./palette.ts";
import { onPaper, widthFor } from "./paper.ts";
import type { Range } from "./range.ts";
import { around, columnsAway, including, moved, zoomed } from "./range.ts";
import { hasTime } from "./scale.ts";
import type { State } from "./state.ts";
import { createTip } from "./tip.ts";

/** The most groups that are shown by line: the largest lines, and all others. */
const MOST_LINES = 11;
const PAGE_OF_COLUMNS = 20;
/** Milliseconds between the two clicks of a double click. */
const DOUBLE = 500;
/** Milliseconds of rest before the chosen moment is said. */
const REST = 250;

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
  let summedBy: State["axis"] = store.state.axis;
  let areas: Shown[] = [];

  const end = () => app.scale().end;
  const everything = (): Range => ({ from: 0, to: end() });
  const chooseMoment = (moment: number): void => {
    const kept = Math.max(0, Math.min(moment, app.memory().head.events));
    store.set({ moment: kept, ...including(store.state, app.scale().of(kept), end()) });
  };
  const zoomBy = (factor: number) => () =>
    store.set(zoomed(store.state, anchor(store.state, app.position()), factor, end()));

  // Two clicks show all again; the first of them must not have chosen a moment.
  let clicked = { at: -Infinity, before: store.state.moment };
  const slots = Math.max(MOST_LINES, page.kinds.length);
  const gestures: Omit<Gestures, "hover" | "choose"> = {
    select(from, to) {
      const start = Math.max(0, Math.floor(from));
      const last = Math.min(end(), Math.max(start + 1, Math.ceil(to)));
      store.set(zoomed({ from: start, to: last }, (start + last) / 2, 1, end()));
    },
    zoom(at, factor) {
      const { from, to } = store.state;
      store.set(zoomed(store.state, at, factor, end()));
      return factor < 1 || store.state.from !== from || store.state.to !== to;
    },
    pan: (by) => store.set(moved(store.state, by, end())),
    reset() {
      const moment = performance.now() - clicked.at < DOUBLE ? clicked.before : store.state.moment;
      store.set({ ...everything(), moment });
    },
  };
  const chooseAt = (moment: number, position: number): void => {
    const now = performance.now();
    clicked = { at: now, before: now - clicked.at > DOUBLE ? store.state.moment : clicked.before };
    store.set({ moment, at: app.scale().of(moment) === position ? null : position });
  };
  const chart = createChart(slots, {
    ...gestures,
    hover(column, x) {
      if (column === null || timeline === null) {
        tip.hide();
      } else {
        tip.show(app.memory(), timeline, shownAreas(), column, x, width);
      }
    },
    choose: chooseAt,
  });
  const other = createBeside(app, slots, gestures, (position) => chooseAt(app.scale().at(position), position));
  const showStretch = (from: number, to: number): void => {
    const scale = app.scale();
    store.set(around(scale.of(from), scale.of(to), end()));
  };
  const lanes = createLanes(showStretch);
  const annotations = createAnnotations(showStretch);
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
  const axes = choice(
    "Goes by",
    [
      ["time", "Time"],
      ["events", "Events"],
    ],
    store.state.axis,
    (axis) => showBy(axis),
  );
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
    axes,
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
    other.element,
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

  const columnBeside = (by: number): number => columnsAway(summed(), app.scale(), store.state.moment, by);

  /** The same stretch by time or by events. */
  function showBy(axis: State["axis"]): void {
    const { from, to } = store.state;
    const before = app.scale();
    const [first, last] = [before.at(from), before.at(to)];
    const isWhole = from === 0 && to === before.end;
    const after = app.scale(app.memory(), axis);
    const view = isWhole
      ? { from: 0, to: after.end }
      : { from: Math.floor(after.of(first)), to: Math.min(after.end, Math.ceil(after.of(last))) };
    store.set({ axis, at: null, ...view });
  }

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
      showStretch(steps.begins[step - 1], steps.begins[step] ?? steps.end);
    }
  }

  /** The view as it is now: a key may come in the same frame as a zoom, before that is drawn. */
  function summed(): Timeline {
    const { by, axis, from, to } = store.state;
    if (
      timeline === null ||
      summedOf !== app.memory() ||
      summedBy !== axis ||
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
    const { by, axis, from, to } = store.state;
    summedOf = app.memory();
    summedBy = axis;
    timeline = summedOf.timeline(by, from, to, chart.columns(), app.scale());
    areas = areasOf(page, palette, timeline);
    return timeline;
  }

  function drawChart(): void {
    const memory = app.memory();
    const { head } = memory;
    const { from, to } = store.state;
    if (timeline === null) {
      return;
    }
    const scale = app.scale();
    const lasts = scale.by === "time" ? (to - from) / 1e6 : (memory.timeOf(to) ?? 0) - (memory.timeOf(from) ?? 0);
    const label = (position: number): string[] => {
      if (scale.by === "time") {
        return [timeWithin(position / 1e6, lasts)];
      }
      const time = memory.timeOf(position);
      return [grouped(position), time === null ? "" : timeWithin(time, lasts, memory.timeError)];
    };
    chart.draw({
      timeline,
      areas: shownAreas(),
      lines: [legend.hides(RESERVED) ? null : timeline.reserved, legend.hides(FILES) ? null : timeline.files],
      limit: !legend.hides(LIMIT),
      head,
      scale,
      label,
    });
    const plot = Math.max(1, width - LEFT - RIGHT);
    lanes.draw(memory, scale, { from, to }, LEFT, plot, RIGHT);
    overview.draw(memory, scale, { from, to }, LEFT, plot, RIGHT);
    annotations.draw(memory.annotations);
    axes.hidden = head.ram !== null || !hasTime(head);
    showAll.disabled = from === 0 && to === scale.end;
    stretch.textContent = stretchInWords();
  }

  function stretchInWords(): string {
    const { from, to } = store.state;
    const { head } = app.memory();
    if (app.scale().by === "time") {
      const whole = seconds(end() / 1e6);
      const [begin, last] = [from, to].map((position) => timeWithin(position / 1e6, (to - from) / 1e6));
      return showAll.disabled ? `All ${whole}` : `${begin} to ${last} of ${whole}`;
    }
    const whole = showAll.disabled
      ? `All ${plural(head.events, "event")}`
      : `Events ${grouped(from)} to ${grouped(to)} of ${grouped(head.events)}`;
    const duration = durationInWords(app.memory(), from, to);
    return duration === null ? whole : `${whole}, ${duration}`;
  }

  function drawMoment(): void {
    const memory = app.memory();
    const { moment } = store.state;
    const position = app.position();
    const facts = factsOf(memory, moment, app.scale().by === "time" ? position / 1e6 : undefined);
    chart.mark(position);
    const { from, to } = store.state;
    const side = position < from ? "left" : position > to ? "right" : null;
    away.hidden = side === null;
    const named = app.scale().by === "time" ? seconds(position / 1e6) : grouped(moment);
    elsewhere.textContent = side === null ? "" : `The chosen moment, ${named}, is ${side} of this view. `;
    chart.element.setAttribute("aria-valuemax", String(memory.head.events));
    chart.element.setAttribute("aria-valuenow", String(moment));
    chart.element.setAttribute("aria-valuetext", facts.join(", "));
    fill(readout, ...facts.map((fact, i) => el(i === 0 ? "b" : "span", {}, fact)));
    legend.draw(entriesAt(memory, store.state.by, moment, areas, chart.limitIsBeyond()));
    other.drawMoment();
  }

  function redraw(): void {
    sum();
    drawChart();
    other.draw();
    drawMoment();
  }
  const redrawSoon = eachFrame(redraw);
  const drawMomentSoon = eachFrame(drawMoment);

  const resize = () => {
    const to = widthFor(host);
    if (to > 0 && to !== width) {
      width = to;
      chart.resize(to);
      other.resize(to);
      redraw();
    }
  };
  new ResizeObserver(resize).observe(host);
  onPaper(resize);
  app.onTheme(() => {
    drawChart();
    other.draw();
  });

  let saying: ReturnType<typeof setTimeout> | undefined;
  store.on((now, before) => {
    if (now.subject !== before.subject) {
      legend.showAll();
    }
    if (
      now.subject !== before.subject ||
      now.axis !== before.axis ||
      now.from !== before.from ||
      now.to !== before.to ||
      now.by !== before.by
    ) {
      tip.hide();
      redrawSoon();
    }
    if (now.moment !== before.moment || now.at !== before.at) {
      // Another view may have chosen a moment out of sight.
      store.set(including(now, app.position(), end()));
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
function anchor({ from, to }: Readonly<State>, chosen: number): number {
  return from <= chosen && chosen <= to ? chosen : (from + to) / 2;
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
