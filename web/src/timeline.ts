// The timeline: what was allocated over the whole recording or a part of it, by kind or by source line.
//
// Every view is summed again from all allocations, one column for each pixel, so nothing is ever left out. This is where
// the moment and the stretch are chosen that the other views show.

import type { App } from "./app.ts";
import type { Chart } from "./chart.ts";
import { LEFT, RIGHT, createChart } from "./chart.ts";
import { choice, eachFrame, el, fill, swatch } from "./dom.ts";
import { bytes, grouped, plural, seconds, timeWithin } from "./format.ts";
import { createLanes } from "./lanes.ts";
import type { Memory, Timeline } from "./memory.ts";
import { createOverview } from "./overview.ts";
import { Palette } from "./palette.ts";
import type { Range } from "./range.ts";
import { around, including, moved, zoomed } from "./range.ts";
import type { State } from "./state.ts";
import { countUpTo } from "./sorting.ts";

/** Lines that a timeline shows apart, and the group of the others. */
const MOST_GROUPS = 12;
const MOST_IN_TIP = 9;
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
  [["Esc"], "show all"],
];

export function mount(host: HTMLElement, app: App): void {
  const { store, page } = app;
  const hidden = new Set<string>();
  const palette = new Palette();
  let timeline: Timeline | null = null;
  let colours: string[] = [];

  const all = (): Range => ({ from: 0, to: app.memory().head.events });
  const events = (): number => app.memory().head.events;
  const chooseMoment = (moment: number): void => {
    const kept = Math.max(0, Math.min(moment, events()));
    store.set({ moment: kept, ...including(store.state, kept, events()) });
  };

  // Two clicks show all again; the first of them must not have chosen a moment.
  let beforeClick = store.state.moment;
  let lastClick = -Infinity;
  const chart: Chart = createChart(Math.max(MOST_GROUPS, page.kinds.length), {
    hover: (column, x) => showTip(column, x),
    choose(moment) {
      if (performance.now() - lastClick > 500) {
        beforeClick = store.state.moment;
      }
      lastClick = performance.now();
      store.set({ moment });
    },
    select: (from, to) => store.set(fitted(from, to)),
    zoom(at, factor) {
      const next = zoomed(store.state, at, factor, events());
      const changes = next.from !== store.state.from || next.to !== store.state.to;
      store.set(next);
      return changes || factor < 1;
    },
    pan: (by) => store.set(moved(store.state, by, events())),
    reset: () => store.set({ ...all(), moment: performance.now() - lastClick < 500 ? beforeClick : store.state.moment }),
  });
  const fitted = (from: number, to: number): Range => {
    const start = Math.max(0, Math.floor(from));
    return zoomed({ from: start, to: Math.min(events(), Math.max(start + 1, Math.ceil(to))) }, (from + to) / 2, 1, events());
  };
  const lanes = createLanes((from, to) => store.set(around(from, to, events())));
  const overview = createOverview((view) => store.set(view));

  const tip = el("div", { class: "tip", hidden: true });
  const readout = el("p", { class: "readout" });
  const span = el("span", { class: "muted" });
  const legend = el("ul", { class: "legend-list", "aria-label": "Groups; press one to hide or show it" });
  const showAll = el("button", { type: "button", onclick: () => store.set(all()) }, "Show all");
  const zoomBy = (factor: number) => () => store.set(zoomed(store.state, anchor(store.state), factor, events()));
  const toolbar = el(
    "div",
    { class: "toolbar" },
    choice("Stacked by", [["kind", "Kind"], ["line", "Source line"]], store.state.by, (by) => store.set({ by })),
    el("button", { type: "button", onclick: zoomBy(0.5), "aria-label": "Zoom in" }, "+"),
    el("button", { type: "button", onclick: zoomBy(2), "aria-label": "Zoom out" }, "−"),
    showAll,
    el("button", { type: "button", onclick: () => chooseMoment(app.memory().head.peak.allocated.moment) }, "Peak"),
    span,
  );
  Object.entries({
    tabindex: "0", role: "slider", "aria-label": "Moment of the timeline", "aria-describedby": "timeline-keys", "aria-valuemin": "0",
  }).forEach(([name, value]) => chart.element.setAttribute(name, value));
  chart.element.append(tip);
  const keys = el("details", { class: "keys" }, el("summary", {}, "Mouse and keyboard"));
  keys.append(
    el("p", { id: "timeline-keys" },
      "Drag to zoom, Shift and drag to move, wheel to zoom, click to choose a moment, double click to show all. With the chart in focus: ",
      ...KEYS.flatMap(([pressed, what]) => [...pressed.flatMap((key) => [el("kbd", {}, key), " "]), `${what}. `]),
    ),
  );
  host.append(toolbar, readout, chart.element, lanes.element, overview.element, legend, keys);

  chart.element.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : action(event);
    if (act !== undefined) {
      event.preventDefault();
      act();
    }
  });

  function action({ key, shiftKey }: KeyboardEvent): (() => void) | undefined {
    const { moment } = store.state;
    const { head } = app.memory();
    const step = (by: number) => () => chooseMoment(shiftKey ? moment + by : columnBeside(by));
    switch (key) {
      case "ArrowLeft": case "ArrowDown": return step(-1);
      case "ArrowRight": case "ArrowUp": return step(1);
      case "PageDown": return () => chooseMoment(columnBeside(20));
      case "PageUp": return () => chooseMoment(columnBeside(-20));
      case "Home": return () => chooseMoment(0);
      case "End": return () => chooseMoment(head.events);
      case "+": case "=": return zoomBy(0.5);
      case "-": case "_": return zoomBy(2);
      case "p": return () => chooseMoment(head.peak.allocated.moment);
      case "n": return () => chooseMoment(stepBeside(1));
      case "N": return () => chooseMoment(stepBeside(-1));
      case "s": return zoomToStep;
      case "Escape": return () => store.set(all());
      default: return undefined;
    }
  }

  /** The moment that a column beside the chosen one's shows. */
  function columnBeside(by: number): number {
    const { moment, from, to } = store.state;
    if (timeline === null || moment < from || moment > to) {
      return moment;
    }
    const column = countUpTo(timeline.starts, moment) - 1 + by;
    if (column >= 0 && column < timeline.tops.length) {
      return timeline.tops[column];
    }
    return moment + Math.round((by * (to - from + 1)) / timeline.starts.length);
  }

  /** The first moment of the step after or before the chosen moment's. */
  function stepBeside(by: 1 | -1): number {
    const { moment } = store.state;
    const firsts = app.memory().head.steps?.begins.map((begin) => begin + 1) ?? [];
    const passed = countUpTo(firsts, by > 0 ? moment : moment - 1);
    return firsts[by > 0 ? passed : passed - 1] ?? moment;
  }

  function zoomToStep(): void {
    const { head } = app.memory();
    const step = app.memory().stepOf(store.state.moment);
    if (head.steps !== null && step !== null) {
      store.set(around(head.steps.begins[step - 1], head.steps.begins[step] ?? head.steps.end, head.events));
    }
  }

  const shownAreas = () =>
    timeline === null
      ? []
      : timeline.groups.map((group, i) => ({ ...group, colour: colours[i] })).filter(({ key }) => !hidden.has(idOf(store.state.by, key)));

  function drawChart(): void {
    const memory = app.memory();
    const { by, from, to } = store.state;
    if (timeline === null) {
      return;
    }
    const times = memory.head.seconds === null ? null : (memory.timeOf(to) ?? 0) - (memory.timeOf(from) ?? 0);
    const timeLabel = (moment: number): string | null => {
      const time = memory.timeOf(moment);
      return time === null || times === null ? null : timeWithin(time, times);
    };
    chart.draw({ timeline, areas: shownAreas(), reserved: !hidden.has(RESERVED), limit: !hidden.has(LIMIT), head: memory.head, timeLabel });
    const width = Math.max(1, host.clientWidth - LEFT - RIGHT);
    lanes.draw(memory.head, { from, to }, LEFT, width, RIGHT);
    overview.draw(memory, { from, to }, LEFT, width, RIGHT);
    const whole = from === 0 && to === memory.head.events;
    showAll.disabled = whole;
    fill(
      span,
      whole ? `All ${plural(memory.head.events, "event")}` : `Events ${grouped(from)} to ${grouped(to)} of ${grouped(memory.head.events)}`,
      times === null ? "" : `, ${seconds(times)}`,
      by === "line" ? `, the ${Math.min(MOST_GROUPS - 2, timeline.groups.length)} largest lines of this view` : "",
    );
  }

  function sum(): void {
    const memory = app.memory();
    const { by, from, to } = store.state;
    timeline = memory.timeline(by, from, to, chart.columns());
    colours = by === "kind" ? timeline.groups.map(({ key }) => page.kinds[key].colour) : palette.colours(timeline.groups.map(({ key }) => key));
  }

  function drawMoment(): void {
    const memory = app.memory();
    const { moment, by } = store.state;
    chart.mark(moment);
    fill(readout, ...momentFacts(memory, moment).map((fact, i) => (i === 0 ? el("b", {}, fact) : el("span", {}, fact))));
    chart.element.setAttribute("aria-valuemax", String(memory.head.events));
    chart.element.setAttribute("aria-valuenow", String(moment));
    chart.element.setAttribute("aria-valuetext", momentFacts(memory, moment).join(", "));
    drawLegend(memory, by, moment);
  }

  function drawLegend(memory: Memory, by: State["by"], moment: number): void {
    if (timeline === null) {
      return;
    }
    const held = new Map<number, number>();
    if (by === "kind") {
      memory.kindsAt(moment).forEach((one) => held.set(one.kind, one.bytes));
    } else {
      const apart = new Set(timeline.groups.map(({ key }) => key));
      for (const one of memory.linesAt(moment)) {
        const key = apart.has(one.line) ? one.line : -1;
        held.set(key, (held.get(key) ?? 0) + one.bytes);
      }
    }
    const { limit } = memory.head;
    const focused = legend.contains(document.activeElement) ? (document.activeElement as HTMLElement).dataset.group : undefined;
    fill(
      legend,
      el("li", { class: "lead" }, "At this moment"),
      ...timeline.groups.map(({ key, name }, i) => item(idOf(by, key), name, swatch(colours[i]), bytes(held.get(key) ?? 0))),
      item(RESERVED, "reserved", el("span", { class: "swatch line", "aria-hidden": "true" }), bytes(memory.reservedAt(moment))),
      limit !== null && item(LIMIT, limit.text, el("span", { class: "swatch line dashed", "aria-hidden": "true" }), bytes(limit.bytes)),
    );
    if (focused !== undefined) {
      legend.querySelector<HTMLElement>(`[data-group="${focused}"]`)?.focus();
    }
  }

  function item(id: string, name: string, mark: HTMLElement, value: string): HTMLElement {
    const toggle = () => {
      if (!hidden.delete(id)) {
        hidden.add(id);
      }
      drawChart();
      drawMoment();
    };
    const button = el("button", { type: "button", title: name, "data-group": id, "aria-pressed": String(!hidden.has(id)), onclick: toggle });
    button.append(mark, el("span", { class: "name" }, name), el("span", { class: "value" }, value));
    return el("li", {}, button);
  }

  function showTip(column: number | null, x: number): void {
    tip.hidden = column === null || timeline === null;
    if (column === null || timeline === null) {
      return;
    }
    const memory = app.memory();
    const top = timeline.tops[column];
    const last = (timeline.starts[column + 1] ?? timeline.to + 1) - 1;
    const rows = shownAreas().map(({ name, colour, bytes: held }) => ({ name, colour, held: held[column] }));
    rows.sort((a, b) => b.held - a.held);
    const ooms = memory.head.ooms.filter(({ moment }) => timeline !== null && timeline.starts[column] <= moment && moment <= last);
    fill(
      tip,
      el("div", {}, el("b", {}, momentFacts(memory, top).slice(0, -2).join(", "))),
      last > timeline.starts[column] && el("div", { class: "muted" }, `the most of events ${grouped(timeline.starts[column])} to ${grouped(last)}`),
      ...ooms.slice(0, 2).map((oom) => el("div", { class: "failure" }, oom.text)),
      el("div", {}, `${bytes(timeline.allocated[column])} allocated, ${bytes(timeline.reserved[column])} reserved`),
      el("table", {}, ...rows.filter(({ held }) => held > 0).slice(0, MOST_IN_TIP).map(({ name, colour, held }) =>
        el("tr", {}, el("td", {}, swatch(colour), name), el("td", { class: "number" }, bytes(held))))),
    );
    const room = host.clientWidth;
    const { offsetWidth } = tip;
    tip.style.left = `${x + 14 + offsetWidth < room ? x + 14 : Math.max(0, x - 14 - offsetWidth)}px`;
  }

  const redraw = eachFrame(() => {
    sum();
    drawChart();
    drawMoment();
  });
  let width = 0;
  const resize = (to: number) => {
    if (to > 0 && to !== width) {
      width = to;
      chart.resize(to);
      sum();
      drawChart();
      drawMoment();
    }
  };
  new ResizeObserver(() => resize(host.clientWidth)).observe(host);
  app.onTheme(() => drawChart());
  const PAPER = 700;
  addEventListener("beforeprint", () => resize(Math.min(width, PAPER)));
  addEventListener("afterprint", () => resize(host.clientWidth));

  let announcing: ReturnType<typeof setTimeout> | undefined;
  store.on((now, before) => {
    if (now.subject !== before.subject) {
      hidden.clear();
    }
    if (now.moment < now.from || now.moment > now.to) {
      // Another view chose a moment out of sight. A zoom away from it is left alone.
      if (now.moment !== before.moment) {
        store.set(including(now, now.moment, events()));
      }
    }
    if (now.from !== before.from || now.to !== before.to || now.by !== before.by || now.subject !== before.subject) {
      tip.hidden = true;
      redraw();
    } else if (now.moment !== before.moment) {
      drawMomentSoon();
    }
    if (now.moment !== before.moment) {
      clearTimeout(announcing);
      announcing = setTimeout(() => app.announce(momentFacts(app.memory(), store.state.moment).join(", ")), 250);
    }
  });
  const drawMomentSoon = eachFrame(drawMoment);

  resize(host.clientWidth);
  for (const picture of document.querySelectorAll<HTMLElement>(".static-picture")) {
    picture.hidden = true;
  }
}

/** Zooming keeps the chosen moment in its place, if it is in view. */
function anchor({ moment, from, to }: Readonly<State>): number {
  return from <= moment && moment <= to ? moment : (from + to) / 2;
}

function idOf(by: State["by"], key: number): string {
  return `${by} ${key}`;
}

/** What there is to say of a moment: when, then allocated and reserved. */
function momentFacts(memory: Memory, moment: number): string[] {
  const { head } = memory;
  const time = memory.timeOf(moment);
  const step = memory.stepOf(moment);
  const when = moment === 0 ? "Before the first event" : `After event ${grouped(moment)}`;
  const peak = moment === head.peak.allocated.moment ? " (peak)" : "";
  return [
    when + peak,
    ...(time === null ? [] : [timeWithin(time, head.seconds ?? 0)]),
    ...(step === null ? [] : [`step ${grouped(step)}`]),
    `${bytes(memory.allocatedAt(moment))} allocated`,
    `${bytes(memory.reservedAt(moment))} reserved`,
  ];
}
