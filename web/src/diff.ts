// Two recordings side by side: peaks, what grew and what shrank, and both timelines one over the other.

import type { App } from "./app.ts";
import { along, commonAxis } from "./common-axis.ts";
import type { DiffDevice } from "./data.ts";
import { el, fill } from "./dom.ts";
import { bytes, change, grouped, percent, plural } from "./format.ts";
import type { LineChart } from "./line-chart.ts";
import { lineChart } from "./line-chart.ts";
import { createPager } from "./pager.ts";
import { whenSeen } from "./redraw.ts";
import { queryOf } from "./search.ts";
import { tableHead } from "./table-head.ts";
import { colour } from "./theme.ts";
import { wordsOf } from "./words.ts";

const POINTS = 500;
const HEIGHT = 220;
/** Lines on a page of the table. */
const PAGE = 25;

interface Row {
  label: string;
  own: boolean;
  before: number;
  after: number;
}

export function mount(host: HTMLElement, app: App): void {
  const content = el("div");
  const chart = lineChart("Bytes that are held and taken in both recordings, one over the other", HEIGHT, null);
  host.append(content);
  let shown: DiffDevice | undefined;
  let draw: (() => void) | null = null;

  function build(): void {
    const { subject } = app.store.state;
    const devices = app.page.diff ?? [];
    const next = devices.find(({ before, after }) => before === subject || after === subject) ?? devices[0];
    host.hidden = next === undefined;
    if (next !== undefined && next !== shown) {
      shown = next;
      draw = show(content, app, next, chart);
      redraw();
    }
  }
  const redraw = whenSeen(host, () => draw?.());
  app.store.on((now, before) => {
    if (now.subject !== before.subject) {
      build();
    }
  });
  app.onTheme(redraw);
  build();
}

/** Fills `content`, and gives the function that draws the chart. */
function show(content: HTMLElement, app: App, device: DiffDevice, chart: LineChart): () => void {
  const heading = el("h3", {}, "Over the recordings");
  fill(
    content,
    peaks(app, device),
    heading,
    chart.element,
    el("h3", {}, "By kind, at the peak"),
    kinds(app, device),
    el("h3", {}, "By line, at the peak"),
    ...lines(device),
  );
  return () => void drawChart(app, device, chart, heading);
}

async function drawChart(app: App, device: DiffDevice, chart: LineChart, heading: HTMLElement): Promise<void> {
  const sides = [
    [device.before, "before", "--series-1"],
    [device.after, "after", "--series-2"],
  ] as const;
  const there = await Promise.all(
    sides.flatMap(([subject, name, property]) =>
      subject === null ? [] : [app.memoryOf(subject).then((memory) => ({ memory, name, property }))],
    ),
  );
  const axis = commonAxis(
    there.map(({ memory }) => memory),
    POINTS,
  );
  heading.textContent = `Over the recordings, ${axis.by}`;
  const series = there.flatMap(({ memory, name, property }) => {
    const { allocated, reserved } = along(axis, memory);
    const words = wordsOf(memory.head);
    const stroke = colour(property);
    return [
      { name: `${name}: ${words.held}`, colour: stroke, values: allocated, width: 2 },
      { name: `${name}: ${words.taken}`, colour: stroke, values: reserved, width: 1, dash: [4, 3] },
    ];
  });
  chart.show(axis, series);
}

function peaks(app: App, device: DiffDevice): HTMLElement {
  const before = device.before === null ? null : app.page.subjects[device.before]!;
  const after = device.after === null ? null : app.page.subjects[device.after]!;
  const words = wordsOf((after ?? before)!);
  const row = (name: string, key: "allocated" | "reserved" | "requested"): HTMLElement => {
    const [was, is] = [before?.peak[key].bytes ?? 0, after?.peak[key].bytes ?? 0];
    return el(
      "tr",
      { "data-peak": key },
      el("th", { scope: "row" }, name),
      el("td", { class: "number" }, before ? bytes(was) : "–"),
      el("td", { class: "number" }, after ? bytes(is) : "–"),
      difference(is - was, was),
    );
  };
  return el(
    "div",
    { class: "scroller" },
    el(
      "table",
      { class: "diff-peaks" },
      el("caption", {}, "Peaks"),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, "Peak"),
          el(
            "th",
            { scope: "col", class: "number" },
            "Before",
            el("span", { class: "muted file" }, before?.title ?? "not there"),
          ),
          el(
            "th",
            { scope: "col", class: "number" },
            "After",
            el("span", { class: "muted file" }, after?.title ?? "not there"),
          ),
          el("th", { scope: "col", class: "number" }, "Difference"),
        ),
      ),
      el(
        "tbody",
        {},
        row(words.held, "allocated"),
        row(words.taken, "reserved"),
        device.ordinal !== null && row("requested", "requested"),
      ),
    ),
  );
}

function difference(by: number, was: number): HTMLElement {
  const share = was > 0 && by !== 0 ? ` (${shareOf(by, was)})` : "";
  return el(
    "td",
    { class: `number difference ${by > 0 ? "grew" : by < 0 ? "shrank" : ""}` },
    change(by),
    el("span", { class: "muted" }, share),
  );
}

function shareOf(by: number, was: number): string {
  if (by >= 9 * was) {
    return `×${grouped(Math.round((was + by) / was))}`;
  }
  const share = percent(Math.abs(by), was);
  return share.startsWith(">") ? `${share} less` : `${by < 0 ? "−" : "+"}${share}`;
}

function kinds(app: App, device: DiffDevice): HTMLElement {
  const most = largest(device.kinds);
  return el(
    "div",
    { class: "scroller" },
    el(
      "table",
      { class: "diff-table" },
      el("caption", {}, "What each kind holds at the peak"),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, "Shrank, grew"),
          ...["Difference", "Before", "After"].map((name) => el("th", { scope: "col", class: "number" }, name)),
          el("th", { scope: "col" }, "Kind"),
        ),
      ),
      el(
        "tbody",
        {},
        ...device.kinds.map((kind) => {
          const mark = el("span", { class: "swatch", "aria-hidden": "true" });
          mark.style.background = app.page.kinds.find(({ name }) => name === kind.name)?.colour ?? "";
          return cells(kind, most, el("th", { scope: "row" }, mark, kind.name), false);
        }),
      ),
    ),
  );
}

function lines(device: DiffDevice): HTMLElement[] {
  let query = queryOf("");
  const most = largest(device.lines);
  const field = el("input", {
    type: "search",
    id: "diff-search",
    placeholder: "file or function…",
    autocomplete: "off",
    spellcheck: "false",
  });
  const found = el("output", { for: "diff-search" });
  const body = el("tbody");
  const head = tableHead<Row>(
    [
      { name: "Shrank, grew", value: (row) => Math.abs(row.after - row.before), numeric: true },
      { name: "Difference", value: (row) => row.after - row.before, numeric: true },
      { name: "Before", value: (row) => row.before, numeric: true },
      { name: "After", value: (row) => row.after, numeric: true },
      { name: "Line", value: (row) => row.label },
    ],
    0,
    () => fromTheStart(),
  );
  const pager = createPager(PAGE, () => draw());

  function draw(): void {
    const matching = device.lines.filter(({ label }) => query.matches(label.toLowerCase()));
    const shown = pager.shown(head.sorted(matching));
    fill(body, ...shown.map((row) => cells(row, most, el("th", { scope: "row", class: "place" }, row.label), row.own)));
    if (shown.length === 0) {
      fill(
        body,
        el(
          "tr",
          {},
          el(
            "td",
            { colspan: 5, class: "none" },
            query.empty ? "No line holds anything at either peak." : "No line matches.",
          ),
        ),
      );
    }
    const sum = matching.reduce((total, row) => total + row.after - row.before, 0);
    found.textContent = query.empty
      ? plural(device.lines.length, "line")
      : `${grouped(matching.length)} of ${plural(device.lines.length, "line")} match: ${change(sum)}`;
  }
  function fromTheStart(): void {
    pager.first();
    draw();
  }
  field.addEventListener("input", () => {
    query = queryOf(field.value);
    fromTheStart();
  });
  draw();
  return [
    el(
      "div",
      { class: "toolbar", role: "search", "aria-label": "Lines that changed" },
      el("label", { for: "diff-search" }, "Search"),
      field,
      found,
    ),
    el(
      "div",
      { class: "scroller" },
      el(
        "table",
        { class: "diff-table" },
        el("caption", {}, "What each line holds at the peak, before and after"),
        head.element,
        body,
      ),
    ),
    pager.element,
  ];
}

function largest(rows: readonly { before: number; after: number }[]): number {
  return rows.reduce((most, { before, after }) => Math.max(most, Math.abs(after - before)), 0);
}

function cells(
  row: { before: number; after: number },
  most: number,
  name: HTMLElement,
  own: boolean,
): HTMLTableRowElement {
  const by = row.after - row.before;
  const bar = el("span", { class: by < 0 ? "shrank" : "grew" });
  bar.style.width = most > 0 ? `${(50 * Math.abs(by)) / most}%` : "0";
  return el(
    "tr",
    { class: own ? "own" : null },
    el("td", { class: "sides", "aria-hidden": "true" }, el("div", {}, bar)),
    difference(by, row.before),
    el("td", { class: "number" }, bytes(row.before)),
    el("td", { class: "number" }, bytes(row.after)),
    name,
  );
}
