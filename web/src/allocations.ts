// Every allocation, in a list: those alive at the chosen moment, or at any moment of the timeline's view.
//
// The list is an array of indices however long it is; elements are made only for the rows of the page that is shown.

import type { App } from "./app.ts";
import { choice, el, fill, swatch } from "./dom.ts";
import { address, bytes, grouped, plural, seconds } from "./format.ts";
import type { Memory } from "./memory.ts";
import { NEVER } from "./memory.ts";
import { durationInWords } from "./moment.ts";
import { createPager } from "./pager.ts";
import { whenSeen } from "./redraw.ts";
import { queryOf, searched } from "./search.ts";
import { selected } from "./sorting.ts";

const PAGE = 100;

type Scope = "moment" | "view";
type Order = "size" | "birth" | "lifetime";

const COLUMNS: [order: Order | null, name: string, of: string][] = [
  [null, "", "narrow"],
  ["size", "Size", "number"],
  [null, "Kind", "kind"],
  [null, "Line", "label"],
  ["birth", "Born", "number"],
  [null, "Freed", "number wide"],
  ["lifetime", "Lifetime", "number"],
];

export function mount(host: HTMLElement, app: App): void {
  const { store } = app;
  let scope: Scope = "moment";
  let order: Order = "size";
  let found: Uint32Array = new Uint32Array();
  let total = 0;
  const open = new Set<number>();

  host.classList.add("long");
  const search = el("input", {
    type: "search",
    placeholder: "line, function, kind",
    "aria-label": "Search allocations",
    oninput: () => refresh(),
  });
  const pager = createPager(PAGE, () => draw());
  const head = el("tr");
  const body = el("tbody");
  const caption = el("caption");
  host.append(
    el(
      "div",
      { class: "toolbar" },
      choice<Scope>(
        "Allocations alive",
        [
          ["moment", "At the chosen moment"],
          ["view", "In the timeline’s view"],
        ],
        scope,
        (chosen) => {
          scope = chosen;
          refresh();
        },
      ),
      search,
      el("span", { class: "grow" }),
      pager.element,
    ),
    el(
      "div",
      { class: "scroller rows", tabindex: "0", role: "region", "aria-label": "List of allocations" },
      el("table", { class: "allocations" }, caption, el("thead", {}, head), body),
    ),
  );

  function refresh(): void {
    pager.first();
    open.clear();
    list();
    draw();
  }

  /** The moments from the first to the last that is asked about. */
  function stretch(): [from: number, to: number] {
    const { moment, from, to } = store.state;
    const scale = app.scale();
    return scope === "moment" ? [moment, moment] : [scale.at(from), scale.at(to)];
  }

  function list(): void {
    const memory = app.memory();
    const [begin, end] = stretch();
    const wanted = matcher(memory, search.value);
    const { born, freed, size } = memory;
    total = 0;
    const keep = (i: number): boolean => {
      const kept = born[i] <= end && begin < freed[i] && wanted(i);
      if (kept) {
        total += size[i];
      }
      return kept;
    };
    found = selected(inOrder(memory, order), keep);
  }

  function draw(): void {
    const memory = app.memory();
    const rows = pager.shown(found, `, ${bytes(total)}`);
    const [begin, end] = stretch().map((moment) => shortWhen(memory, moment));
    caption.textContent =
      scope === "moment"
        ? `Allocations alive after ${begin}`
        : `Allocations alive at any moment from ${begin} to ${end}`;
    fill(head, ...COLUMNS.map(([by, name, of]) => heading(by, name, of)));
    fill(body, ...[...rows].flatMap((i) => (open.has(i) ? [row(memory, i), detail(memory, i)] : [row(memory, i)])));
  }

  function heading(by: Order | null, name: string, of: string): HTMLElement {
    const sorted = by === order && (by === "birth" ? "ascending" : "descending");
    const cell = el("th", { scope: "col", class: of, "aria-sort": sorted });
    if (by === null) {
      cell.append(name === "" ? el("span", { class: "visually-hidden" }, "Details") : name);
      return cell;
    }
    const sort = () => {
      order = by;
      refresh();
      head.querySelector<HTMLElement>("[aria-sort] button")?.focus();
    };
    cell.append(
      el(
        "button",
        { type: "button", onclick: sort },
        name,
        sorted === false ? "" : sorted === "ascending" ? " ▴" : " ▾",
      ),
    );
    return cell;
  }

  function row(memory: Memory, i: number): HTMLElement {
    const line = memory.lines[memory.line[i]];
    const kind = memory.page.kinds[memory.kind[i]];
    const expanded = open.has(i);
    const toggle = el(
      "button",
      {
        type: "button",
        class: "expand",
        "aria-expanded": String(expanded),
        "aria-label": `Stack of ${bytes(memory.size[i])} of ${line.label}`,
        "data-allocation": i,
      },
      expanded ? "▾" : "▸",
    );
    const flip = () => {
      if (!open.delete(i)) {
        open.add(i);
      }
      draw();
      body.querySelector<HTMLElement>(`[data-allocation="${i}"]`)?.focus();
    };
    return el(
      "tr",
      { class: "row", onclick: flip },
      el("td", {}, toggle),
      el("td", { class: "number" }, bytes(memory.size[i])),
      el("td", { class: "kind" }, swatch(kind.colour), kind.name),
      el(
        "td",
        { class: "label mono", title: memory.groupName("line", memory.line[i]) },
        line.label,
        line.through !== "" && el("span", { class: "muted" }, ` → ${line.through}`),
      ),
      el("td", { class: "number" }, birth(memory, i)),
      el("td", { class: "number wide" }, memory.freed[i] === NEVER ? "never" : columnWhen(memory, memory.freed[i])),
      el("td", { class: "number" }, lifetime(memory, i)),
    );
  }

  function detail(memory: Memory, i: number): HTMLElement {
    const line = memory.lines[memory.line[i]];
    const requested = memory.size[i] - memory.slack[i];
    const { ram } = memory.head;
    const how = ram?.hows[memory.stream[i]];
    const facts: [string, string][] = [
      [how?.sampled ? "stands for" : "size", `${bytes(memory.size[i])} (${grouped(memory.size[i])} B)`],
      ...(ram === null
        ? ([
            ["requested", `${bytes(requested)} (${grouped(requested)} B)`],
            ["address", address(memory.head.address_base, memory.address[i])],
            ["stream", String(memory.stream[i])],
          ] satisfies [string, string][])
        : ([["how", how?.name ?? ""]] satisfies [string, string][])),
      ["born", when(memory, memory.born[i])],
      ["freed", memory.freed[i] === NEVER ? "never" : when(memory, memory.freed[i])],
    ];
    const stack = memory.stackOf(i);
    const frames = stack.map(({ name, file, line: number, own }) => {
      return el(
        "li",
        { class: own ? "own" : "library" },
        name,
        " ",
        el("span", { class: "muted" }, number > 0 ? `${file}:${number}` : file),
      );
    });
    const choose = (event: Event) => {
      event.stopPropagation();
      store.set({ moment: memory.born[i] });
    };
    return el(
      "tr",
      { class: "detail" },
      el(
        "td",
        { colspan: COLUMNS.length },
        el(
          "dl",
          { class: "facts" },
          ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
        ),
        line.through !== "" && el("p", {}, "through ", el("code", {}, line.through)),
        line.source !== "" && el("p", {}, el("code", {}, line.source)),
        frames.length > 0
          ? el("ol", { class: "stack", "aria-label": "Stack, innermost call first" }, ...frames)
          : el("p", { class: "muted" }, `No calls recorded: ${line.label}.`),
        el("button", { type: "button", onclick: choose }, "Choose its birth as the moment"),
      ),
    );
  }

  const update = whenSeen(host, refresh);
  store.on((now, before) => {
    const moved = scope === "moment" ? now.moment !== before.moment : now.from !== before.from || now.to !== before.to;
    if (moved || now.subject !== before.subject) {
      update();
    }
  });
  update();
}

function inOrder(memory: Memory, order: Order): Uint32Array {
  switch (order) {
    case "size":
      return memory.bySize();
    case "lifetime":
      return memory.byLifetime();
    case "birth":
      return memory.byBirth();
  }
}

/** Whether an allocation is looked for, by its line and its kind. */
function matcher(memory: Memory, text: string): (allocation: number) => boolean {
  const query = queryOf(text);
  if (query.empty) {
    return () => true;
  }
  // There are few pairs of them.
  const pairs = memory.lines.map((line) => memory.page.kinds.map((kind) => query.matches(searched(line, kind))));
  return (i) => pairs[memory.line[i]][memory.kind[i]];
}

function birth(memory: Memory, i: number): string {
  return memory.born[i] === 0 ? "before" : columnWhen(memory, memory.born[i]);
}

/** A moment in a column: of RAM its time, for of its events only some are there. */
function columnWhen(memory: Memory, moment: number): string {
  const time = memory.head.ram === null ? null : memory.timeOf(moment);
  return time === null ? grouped(moment) : seconds(time, memory.timeError);
}

function shortWhen(memory: Memory, moment: number): string {
  const isEvent = memory.head.ram === null || memory.timeOf(moment) === null;
  return isEvent ? `event ${grouped(moment)}` : columnWhen(memory, moment);
}

function when(memory: Memory, moment: number): string {
  if (moment === 0) {
    return "before the recording";
  }
  const time = memory.timeOf(moment);
  const step = memory.stepOf(moment);
  return [
    memory.head.ram === null || time === null ? `event ${grouped(moment)}` : "",
    time === null ? "" : seconds(time, memory.timeError),
    step === null ? "" : `step ${grouped(step)}`,
  ]
    .filter((part) => part !== "")
    .join(", ");
}

function lifetime(memory: Memory, i: number): string {
  const end = Math.min(memory.freed[i], memory.head.events);
  const time = memory.head.ram === null ? null : durationInWords(memory, memory.born[i], end);
  const lived = time ?? plural(end - memory.born[i], "event");
  return memory.freed[i] === NEVER ? `≥ ${lived}` : lived;
}
