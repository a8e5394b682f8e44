// What is held at the chosen moment: by kind, by source line, and by the calls that lead to it.
//
// One search field filters the table and marks the flame graph. A line opens into the stacks that end there.

import type { App } from "./app.ts";
import { choice, el, fill, swatch } from "./dom.ts";
import { flame, heldByCalls } from "./flame.ts";
import { bytes, bytesWithin, grouped, percent, plural } from "./format.ts";
import type { Frame, LineAt, Memory } from "./memory.ts";
import { momentInWords } from "./moment.ts";
import { createPager } from "./pager.ts";
import { whenSeen } from "./redraw.ts";
import { queryOf, searched } from "./search.ts";
import { tableHead } from "./table-head.ts";

/** Lines on a page of the table. */
const PAGE = 25;
/** Stacks of one line that are shown. */
const MOST_STACKS = 20;

type Show = "own" | "python" | "all";
const SHOWS: [Show, string][] = [
  ["own", "own code"],
  ["python", "Python frames"],
  ["all", "all frames"],
];

interface Row {
  line: number;
  bytes: number;
  count: number;
  error: number;
  kind: number;
  label: string;
  own: boolean;
  through: string;
  source: string;
  /** Everything that a search looks at, in lower case. */
  text: string;
}

export function mount(host: HTMLElement, app: App): void {
  let rows: Row[] = [];
  let held = 0;
  let show: Show = "own";
  let query = queryOf("");
  const open = new Set<number>();

  const summary = el("p", { class: "peak-summary" });
  const bar = el("div", { class: "peak-bar", "aria-hidden": "true" });
  const kinds = el("ul", { class: "peak-kinds", "aria-label": "Held by kind" });
  const field = el("input", {
    type: "search",
    id: "peak-search",
    placeholder: "file, function, kind, source…",
    autocomplete: "off",
    spellcheck: "false",
  });
  const found = el("output", { class: "peak-found", for: "peak-search" });
  const graph = flame();

  const order = tableHead<Row>(
    [
      { name: "Bytes", numeric: true, value: (row) => row.bytes },
      { name: "Share", numeric: true, value: (row) => row.bytes },
      { name: "Blocks", numeric: true, value: (row) => row.count },
      { name: "Kind", value: (row) => app.page.kinds[row.kind]?.name ?? "" },
      { name: "Line", value: (row) => row.label },
      { name: "Through", value: (row) => row.through },
      { name: "Source" },
    ],
    0,
    () => {
      pager.first();
      drawTable();
    },
  );
  const caption = el("caption");
  const body = el("tbody");
  const table = el("table", { class: "peak-table" }, caption, order.element, body);
  const pager = createPager(PAGE, () => drawTable());

  host.append(
    summary,
    bar,
    kinds,
    el(
      "div",
      { class: "toolbar", role: "search", "aria-label": "Lines and calls" },
      el("label", { for: "peak-search" }, "Search"),
      field,
      found,
      el("span", { class: "grow" }),
      choice("Frames of the flame graph", SHOWS, show, (value) => {
        show = value;
        drawGraph();
      }),
    ),
    graph.element,
    el("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Held by source line" }, table),
    pager.element,
  );

  field.addEventListener("input", () => {
    query = queryOf(field.value);
    pager.first();
    drawTable();
    drawFound();
  });

  function drawFound(): void {
    const calls = graph.search(query);
    if (query.empty) {
      found.textContent = "";
      return;
    }
    const matching = rows.filter(({ text }) => query.matches(text));
    const sum = matching.reduce((total, row) => total + row.bytes, 0);
    found.textContent = `${grouped(matching.length)} of ${plural(rows.length, "line")} match: ${bytes(sum)}, ${percent(sum, held)}; ${callsInWords(calls)}`;
  }

  /** What calls that match lead to; where the switch hides them all, the choice that shows them. */
  function callsInWords(calls: number): string {
    if (calls > 0) {
      return `calls that match lead to ${bytes(calls)}, ${percent(calls, held)}`;
    }
    const memory = app.memory();
    for (const [other, name] of SHOWS.slice(SHOWS.findIndex(([value]) => value === show) + 1)) {
      const hidden = heldByCalls(memory.flameAt(app.store.state.moment, other), memory.frames, query);
      if (hidden > 0) {
        return `calls that match lead to ${bytes(hidden)}, ${percent(hidden, held)}, but are not among the frames shown: choose “${name}”`;
      }
    }
    return "no call matches";
  }

  function drawGraph(): void {
    const memory = app.memory();
    graph.show(memory.flameAt(app.store.state.moment, show), memory.frames);
    drawFound();
  }

  function drawTable(): void {
    const shown = pager.shown(order.sorted(rows.filter(({ text }) => query.matches(text))));
    fill(body, ...shown.flatMap((row) => drawRow(row)));
    if (shown.length === 0) {
      fill(
        body,
        el(
          "tr",
          {},
          el(
            "td",
            { colspan: 7, class: "none" },
            !query.empty ? "No line matches." : "Nothing is held at this moment.",
          ),
        ),
      );
    }
  }

  function drawRow(row: Row): HTMLTableRowElement[] {
    const kind = app.page.kinds[row.kind];
    const id = `peak-stacks-${row.line}`;
    const isOpen = open.has(row.line);
    const toggle = el(
      "button",
      {
        type: "button",
        class: "expand",
        "aria-expanded": String(isOpen),
        "aria-controls": isOpen ? id : null,
        onclick: () => {
          if (!open.delete(row.line)) {
            open.add(row.line);
          }
          drawTable();
          body.querySelector<HTMLElement>(`tr[data-line="${row.line}"] .expand`)?.focus();
        },
      },
      row.label,
    );
    const share = el("td", { class: "number share" }, percent(row.bytes, held));
    share.style.setProperty("--share", held > 0 ? `${(100 * row.bytes) / held}%` : "0");
    if (kind) {
      share.style.setProperty("--bar", kind.colour);
    }
    const main = el(
      "tr",
      { class: row.own ? "own" : null, "data-line": row.line },
      el("td", { class: "number" }, bytesWithin(row.bytes, row.error)),
      share,
      el("td", { class: "number" }, grouped(row.count)),
      el("td", { class: "kind" }, kind && swatch(kind.colour), kind?.name),
      el("th", { scope: "row", class: "place" }, toggle),
      el("td", { class: "through" }, row.through),
      el("td", { class: "source" }, row.source && el("code", {}, row.source)),
    );
    return isOpen ? [main, el("tr", { class: "stacks", id }, el("td", { colspan: 7 }, drawStacks(row)))] : [main];
  }

  function drawStacks(row: Row): HTMLElement {
    const memory = app.memory();
    const stacks = stacksOf(memory, row.line, app.store.state.moment);
    const items = stacks
      .slice(0, MOST_STACKS)
      .map((stack, index) =>
        el(
          "details",
          { class: "stack", open: index === 0 },
          el(
            "summary",
            {},
            `${bytes(stack.bytes)} in ${plural(stack.count, "block")}`,
            stack.largest < stack.bytes && ` of up to ${bytes(stack.largest)}`,
          ),
          drawFrames(memory.stackOf(stack.allocation)),
        ),
      );
    const left = stacks.length - items.length;
    return el(
      "div",
      {},
      el("p", {}, `${plural(stacks.length, "stack")} through this line, the one with the most first`),
      ...items,
      left > 0 && el("p", {}, `${plural(left, "stack")} with less are not shown.`),
    );
  }

  const redraw = whenSeen(host, () => {
    const memory = app.memory();
    const { moment } = app.store.state;
    rows = memory.linesAt(moment).map((entry) => rowOf(memory, entry, app));
    held = rows.reduce((sum, row) => sum + row.bytes, 0);
    const blocks = rows.reduce((sum, row) => sum + row.count, 0);
    fill(
      summary,
      el("strong", {}, bytesWithin(held, memory.errorAt(moment))),
      ` in ${plural(blocks, "block")} of ${plural(rows.length, "line")}, ${momentInWords(memory, moment)}`,
    );
    fill(caption, `Held by source line ${momentInWords(memory, moment)}`);
    const sums = memory.kindsAt(moment);
    fill(
      bar,
      ...sums.map((sum) => {
        const part = el("span", {});
        part.style.flexGrow = String(sum.bytes);
        part.style.background = app.page.kinds[sum.kind]?.colour ?? "";
        return part;
      }),
    );
    fill(
      kinds,
      ...sums.map((sum) => {
        const kind = app.page.kinds[sum.kind];
        return el(
          "li",
          { "data-kind": kind?.key },
          kind && swatch(kind.colour),
          el("span", { class: "name" }, kind?.name ?? ""),
          el("b", {}, bytesWithin(sum.bytes, sum.error)),
          el("span", { class: "muted" }, `${percent(sum.bytes, held)}, ${plural(sum.count, "block")}`),
        );
      }),
    );
    table.classList.toggle(
      "without-source",
      rows.every((row) => row.source === ""),
    );
    table.classList.toggle(
      "without-through",
      rows.every((row) => row.through === ""),
    );
    drawTable();
    drawGraph();
  });

  app.store.on((now, before) => {
    if (now.subject !== before.subject) {
      open.clear();
      pager.first();
    }
    if (now.subject !== before.subject || now.moment !== before.moment) {
      redraw();
    }
  });
  redraw();
}

function rowOf(memory: Memory, entry: LineAt, app: App): Row {
  const line = memory.lines[entry.line];
  const label = line?.label ?? "";
  const through = line?.through ?? "";
  const source = line?.source ?? "";
  const text = searched(line, app.page.kinds[entry.kind]);
  return { ...entry, label, own: line?.own ?? false, through, source, text };
}

/** What is held through a line at a moment, by stack, the one with the most first. */
function stacksOf(
  memory: Memory,
  line: number,
  moment: number,
): { allocation: number; bytes: number; count: number; largest: number }[] {
  const stacks = new Map<number, { allocation: number; bytes: number; count: number; largest: number }>();
  for (const allocation of memory.aliveAt(moment)) {
    if (memory.line[allocation] !== line) {
      continue;
    }
    const stack = memory.stack[allocation];
    const size = memory.size[allocation];
    const known = stacks.get(stack);
    if (known) {
      known.bytes += size;
      known.count += 1;
      known.largest = Math.max(known.largest, size);
    } else {
      stacks.set(stack, { allocation, bytes: size, count: 1, largest: size });
    }
  }
  return [...stacks.values()].sort((a, b) => b.bytes - a.bytes);
}

function drawFrames(frames: readonly Frame[]): HTMLElement {
  if (frames.length === 0) {
    return el("p", { class: "muted" }, "The recording has no stack for these blocks.");
  }
  return el(
    "ol",
    { class: "frames", "aria-label": "Calls, innermost first" },
    ...frames.map((frame) =>
      el(
        "li",
        { class: frame.own ? "own" : null },
        el("span", { class: "name" }, frame.name),
        " ",
        el("span", { class: "muted" }, frame.line > 0 ? `${frame.file}:${frame.line}` : frame.file),
      ),
    ),
  );
}
