// The allocator at the chosen moment: every segment and block to scale, free bytes by why they are free, and who keeps them.

import type { App } from "./app.ts";
import type { Oom, Waste } from "./data.ts";
import { el, fill, swatch } from "./dom.ts";
import { address, bytes, grouped, percent, plural } from "./format.ts";
import type { Block, Memory, Segment } from "./memory.ts";
import { durationInWords, momentInWords } from "./moment.ts";
import { createPager } from "./pager.ts";
import { onPaper, widthFor } from "./paper.ts";
import { whenSeen } from "./redraw.ts";
import type { FreeState, Paint, SegmentMap, Spot } from "./segment-map.ts";
import { hatchedSwatch, scaleFor, segmentMap } from "./segment-map.ts";

const MIB = 1 << 20;
/** What is worth a line of the map: bytes of large segments, and how many small ones. */
const LINE_BYTES = 64 * MIB;
const LINE_SMALL_SEGMENTS = 8;
/** The lines that a map should take at the reserved peak, more only if segments would be narrower than this on average. */
const MOST_LINES = 16;
const MOST_SMALL_LINES = 4;
const SEGMENT_PIXELS = 20;
/** Of more segments than this, each gets less. */
const CROWD = 2000;
const CROWDED_PIXELS = 8;
/** Requests up to this are served from small segments. */
const SMALL_REQUEST = MIB;
/** Lines of source that are named as keeping holes. */
const MOST_KEEPERS = 6;
/** Lines of source that are named for one segment. */
const MOST_HOLDERS = 3;
/** Segments on a page of the table. */
const PAGE = 100;
/** Frames that playing takes from the first moment in view to the last, and milliseconds between them. */
const PLAY_FRAMES = 300;
const PLAY_EVERY = 40;

/** Why bytes are free, in the words of the page, and where `oomph explain` accounts for them. */
const FREE: { state: FreeState; account: keyof Waste; name: string; one: string; why: string }[] = [
  {
    state: "hole",
    account: "holes",
    name: "holes",
    one: "Hole",
    why: "free, in a segment that other blocks keep from being given back",
  },
  {
    state: "cached",
    account: "cached",
    name: "cached",
    one: "Cached",
    why: "the segment is free as a whole: empty_cache() would give it back",
  },
  {
    state: "pending",
    account: "pending",
    name: "pending",
    one: "Pending",
    why: "freed by the program, held until another stream has passed",
  },
  {
    state: "other stream",
    account: "other_streams",
    name: "other streams",
    one: "Of another stream",
    why: "free, but only for that stream",
  },
  {
    state: "private",
    account: "private_pools",
    name: "private pools",
    one: "Of a private pool",
    why: "free, but only for that pool",
  },
];

interface Panel {
  small: boolean;
  map: SegmentMap;
  heading: HTMLElement;
  element: HTMLElement;
  segments: Segment[];
  /** Bytes for each pixel. */
  scale: number;
}

export function mount(host: HTMLElement, app: App): void {
  let width = 0;
  /** The width and the subject that the maps are scaled for: the picture must not jump while the slider moves. */
  let scaledFor = "";

  const sentence = el("p", { class: "allocator-sentence" });
  const failed = el("div", { class: "allocator-failed" });
  const legend = el("ul", { class: "allocator-legend", "aria-label": "Reserved bytes by what they are" });
  const details = el("p", { class: "allocator-details", "aria-live": "off" });
  const keepers = el("div", { class: "allocator-keepers" });
  const tableHost = el("div", { class: "scroller" });
  const pager = createPager(PAGE, () => drawTable());
  const table = el(
    "details",
    { class: "allocator-table" },
    el("summary", {}, "Segments as a table"),
    tableHost,
    pager.element,
  );
  table.addEventListener("toggle", () => drawTable());

  const slider = el("input", { type: "range", min: 0, step: 1, id: "allocator-moment", "aria-label": "Moment" });
  slider.addEventListener("input", () => app.store.set({ moment: Number(slider.value) }));
  const here = el("output", { for: "allocator-moment", class: "allocator-here" });
  const jumps = el("div", { class: "allocator-jumps", role: "group", "aria-label": "Go to" });

  const large = panel(false);
  const small = panel(true);
  const panels = [large, small];
  host.append(
    el("div", { class: "toolbar" }, playButton(), slider, here, jumps),
    sentence,
    failed,
    legend,
    details,
    ...panels.map(({ element }) => element),
    keepers,
    table,
  );

  function panel(small: boolean): Panel {
    const heading = el("h3");
    const name = small ? "Segments for requests up to 1 MiB" : "Segments for larger requests";
    const map = segmentMap(`${name}. Arrow keys move between blocks and segments.`, (spot, byKeyboard) =>
      showDetails(made, spot, byKeyboard),
    );
    const element = el("div", { class: "allocator-panel" }, heading, map.element);
    const made: Panel = { small, map, heading, element, segments: [], scale: 1 };
    return made;
  }

  function playButton(): HTMLElement {
    let timer: ReturnType<typeof setInterval> | undefined;
    const stop = (): void => {
      clearInterval(timer);
      timer = undefined;
      button.textContent = "Play";
    };
    /** The first and the last moment in view. */
    const view = (): [from: number, to: number] => {
      const scale = app.scale();
      return [scale.at(app.store.state.from), scale.at(app.store.state.to)];
    };
    const step = (): void => {
      const [from, to] = view();
      const { moment } = app.store.state;
      const next = moment + Math.max(1, Math.round((to - from) / PLAY_FRAMES));
      app.store.set({ moment: Math.min(next, to) });
      if (next >= to) {
        stop();
      }
    };
    const button = el(
      "button",
      {
        type: "button",
        class: "allocator-play",
        onclick: () => {
          if (timer !== undefined) {
            stop();
            return;
          }
          const [from, to] = view();
          const { moment } = app.store.state;
          if (moment >= to || moment < from) {
            app.store.set({ moment: from });
          }
          button.textContent = "Pause";
          timer = setInterval(step, PLAY_EVERY);
        },
      },
      "Play",
    );
    return button;
  }

  function drawJumps(): void {
    const { head } = app.memory();
    const go = (name: string, moment: () => number): HTMLElement =>
      el("button", { type: "button", onclick: () => app.store.set({ moment: moment() }) }, name);
    const { ooms } = head;
    const nextOom = (): number => (ooms.find((oom) => oom.moment > app.store.state.moment) ?? ooms[0]!).moment;
    fill(
      jumps,
      go("Allocated peak", () => head.peak.allocated.moment),
      go("Reserved peak", () => head.peak.reserved.moment),
      ooms.length > 0 && go(ooms.length > 1 ? `Out of memory (${grouped(ooms.length)})` : "Out of memory", nextOom),
      go("End", () => head.events),
    );
  }

  /** The scale that suits the moment with the most reserved suits every other. */
  function rescale(memory: Memory): void {
    const key = `${width} ${app.store.state.subject}`;
    if (scaledFor === key) {
      return;
    }
    scaledFor = key;
    const all = memory.segmentsAt(memory.head.peak.reserved.moment);
    for (const of of panels) {
      const segments = all.filter((segment) => segment.small === of.small);
      const total = segments.reduce((sum, { size }) => sum + size, 0);
      const wanted = Math.max(1, Math.ceil(of.small ? segments.length / LINE_SMALL_SEGMENTS : total / LINE_BYTES));
      const each = segments.length > CROWD ? CROWDED_PIXELS : SEGMENT_PIXELS;
      const most = Math.max(of.small ? MOST_SMALL_LINES : MOST_LINES, Math.ceil((segments.length * each) / width));
      const lines = Math.min(wanted, most);
      of.scale = scaleFor(segments, width, lines);
    }
  }

  function drawSentence(memory: Memory, segments: readonly Segment[], now: Waste): void {
    const holed = segments.filter(({ blocks }) => blocks.some(({ state }) => state === "hole"));
    const largest = holed.reduce(
      (most, { blocks }) =>
        blocks.reduce((size, block) => (block.state === "hole" ? Math.max(size, block.size) : size), most),
      0,
    );
    const free =
      now.holes > 0
        ? `${bytes(now.holes)} in holes in ${plural(holed.length, "segment")}, the largest hole is ${bytes(largest)}`
        : "no holes";
    const cached = now.cached > 0 ? `; ${bytes(now.cached)} in segments that are free as a whole` : "";
    fill(
      sentence,
      el("strong", {}, `${bytes(now.reserved)} reserved`),
      ` in ${plural(segments.length, "segment")}, `,
      el("strong", {}, `${bytes(now.allocated)} in use`),
      `; ${free}${cached}, ${momentInWords(memory, app.store.state.moment)}.`,
    );
  }

  /** The request that failed at this moment and the largest free piece, to the scale of the map unless that is too fine for the line. */
  function drawFailed(oom: Oom | undefined, now: Waste): void {
    failed.hidden = oom === undefined;
    if (oom === undefined) {
      return;
    }
    const scale = Math.max(
      (oom.size <= SMALL_REQUEST ? small : large).scale,
      oom.size / width,
      now.largest_free / width,
    );
    const bar = (name: string, size: number, kind: string): HTMLElement => {
      const line = el("div", { class: "bar" });
      line.style.width = `${size / scale}px`;
      return el(
        "div",
        { class: `allocator-request ${kind}` },
        el("span", {}, `${name}: ${bytes(size)}`),
        size > 0 && line,
      );
    };
    fill(
      failed,
      el(
        "p",
        {},
        el("strong", {}, `A request of ${bytes(oom.size)} failed here`),
        oom.place !== "" && ` (${oom.place})`,
        now.largest_free >= oom.size
          ? "; a free piece would have held it."
          : `; the largest free piece is ${bytes(now.largest_free)}.`,
      ),
      el("p", { class: "muted" }, oom.text),
      bar("the request", oom.size, "request"),
      bar("the largest free piece, framed below", now.largest_free, "largest"),
    );
  }

  function drawLegend(memory: Memory, now: Waste): void {
    const item = (key: string, square: HTMLElement, name: string, sum: number, why: string): HTMLElement =>
      el(
        "li",
        { "data-account": key, title: why },
        square,
        el("span", { class: "name" }, name),
        el("b", {}, bytes(sum)),
        el("span", { class: "muted" }, percent(sum, now.reserved)),
        el("span", { class: "visually-hidden" }, why),
      );
    fill(
      legend,
      ...memory.kindsAt(app.store.state.moment).map((sum) => {
        const kind = app.page.kinds[sum.kind];
        return item(`kind-${kind?.key ?? ""}`, swatch(kind?.colour ?? ""), kind?.name ?? "", sum.bytes, "in use");
      }),
      ...FREE.filter(({ account }) => now[account] > 0 || account === "holes" || account === "cached").map(
        ({ state, account, name, why }) => item(account, hatchedSwatch(state), name, now[account], why),
      ),
    );
    const lost = [
      now.rounding > 0 && `${bytes(now.rounding)} lost by rounding`,
      now.remainders > 0 && `${bytes(now.remainders)} in remainders too small to split off`,
    ].filter((part) => part !== false);
    if (lost.length > 0) {
      legend.append(
        el("li", { class: "muted", "data-account": "requested" }, `of what is in use, ${lost.join(" and ")}`),
      );
    }
  }

  function paintOf(memory: Memory): Paint {
    return {
      colour: (block) => app.page.kinds[memory.kind[block.allocation]!]?.colour ?? "",
      text: (block) => (block.state === "used" ? `${bytes(block.size)} ${labelOf(memory, block)}` : bytes(block.size)),
    };
  }

  function drawMaps(memory: Memory, segments: readonly Segment[], oom: Oom | undefined, now: Waste): void {
    rescale(memory);
    const paint = paintOf(memory);
    for (const of of panels) {
      of.segments = segments.filter((segment) => segment.small === of.small);
      of.element.hidden = of.segments.length === 0;
      const total = of.segments.reduce((sum, { size }) => sum + size, 0);
      fill(
        of.heading,
        of.small ? "Segments for requests up to 1 MiB" : "Segments for larger requests",
        el(
          "span",
          { class: "muted" },
          `${bytes(total)} in ${plural(of.segments.length, "segment")}, ${bytes(Math.round(of.scale * 100))} are 100 pixels`,
        ),
      );
      of.map.show(of.segments, of.scale, width, paint, oom ? pieceOf(of.segments, now.largest_free) : null);
    }
  }

  function drawKeepers(memory: Memory, segments: readonly Segment[]): void {
    const kept = keepersOf(memory, segments).slice(0, MOST_KEEPERS);
    keepers.hidden = kept.length === 0;
    if (kept.length === 0) {
      return;
    }
    fill(
      keepers,
      el(
        "table",
        {},
        el(
          "caption",
          {},
          "Who keeps the holes: lines whose blocks live in segments with holes. A segment that several lines hold counts for each.",
        ),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { scope: "col" }, "Line"),
            el("th", { scope: "col" }, "Through"),
            el("th", { scope: "col", class: "number" }, "Holds there"),
            el("th", { scope: "col", class: "number" }, "Segments"),
            el("th", { scope: "col", class: "number" }, "Holes in them"),
          ),
        ),
        el(
          "tbody",
          {},
          ...kept.map((keeper) => {
            const line = memory.lines[keeper.line];
            return el(
              "tr",
              { class: line?.own ? "own" : null },
              el("th", { scope: "row", class: "place" }, line?.label ?? ""),
              el("td", { class: "through" }, line?.through),
              el("td", { class: "number" }, bytes(keeper.held)),
              el("td", { class: "number" }, grouped(keeper.segments)),
              el("td", { class: "number" }, bytes(keeper.holes)),
            );
          }),
        ),
      ),
    );
  }

  function showDetails(of: Panel, spot: Spot | null, byKeyboard: boolean): void {
    const segment = spot ? of.segments[spot.segment] : undefined;
    const block = spot ? segment?.blocks[spot.block] : undefined;
    details.classList.toggle("is-hint", block === undefined);
    if (spot === null || segment === undefined || block === undefined) {
      details.textContent =
        "Point at a block to see whose it is. In the map the arrow keys move: left and right by block, up and down by segment.";
      return;
    }
    const memory = app.memory();
    const text = `${describe(memory, app, segment, spot.block)} ${describeSegment(memory, segment, spot.segment, of.segments.length)}`;
    details.textContent = text;
    if (byKeyboard) {
      app.announce(text);
    }
  }

  function drawTable(): void {
    if (!table.open) {
      fill(tableHost);
      return;
    }
    const memory = app.memory();
    const segments = memory.segmentsAt(app.store.state.moment);
    const shown = pager.shown(segments);
    const text = (name: string): HTMLElement => el("th", { scope: "col" }, name);
    const number = (name: string): HTMLElement => el("th", { scope: "col", class: "number" }, name);
    const head = [
      text("Address"),
      number("Size"),
      text("For"),
      number("In use"),
      number("Free"),
      text("Why"),
      number("Largest free"),
      text("Held by"),
    ];
    fill(
      tableHost,
      el(
        "table",
        {},
        el("caption", {}, `Segments ${momentInWords(memory, app.store.state.moment)}`),
        el("thead", {}, el("tr", {}, ...head)),
        el("tbody", {}, ...shown.map((segment) => segmentRow(memory, segment))),
      ),
    );
  }

  const redraw = whenSeen(host, () => {
    // It may be asked for before the page was laid out, or for paper.
    measure();
    const memory = app.memory();
    const { moment } = app.store.state;
    const segments = memory.segmentsAt(moment);
    const waste = memory.wasteAt(moment);
    const oom = memory.head.ooms.find((failure) => failure.moment === moment);
    slider.max = String(memory.head.events);
    slider.value = String(moment);
    slider.setAttribute(
      "aria-valuetext",
      `${momentInWords(memory, moment)}: ${bytes(waste.reserved)} reserved, ${bytes(waste.allocated)} in use`,
    );
    here.textContent = `event ${grouped(moment)}`;
    drawSentence(memory, segments, waste);
    drawLegend(memory, waste);
    drawMaps(memory, segments, oom, waste);
    drawFailed(oom, waste);
    drawKeepers(memory, segments);
    showDetails(large, null, false);
    drawTable();
  });

  app.store.on((now, before) => {
    if (now.subject !== before.subject) {
      drawJumps();
      pager.first();
    }
    if (now.subject !== before.subject || now.moment !== before.moment) {
      redraw();
    }
  });
  app.onTheme(redraw);
  // The sentence is as wide as a map, and there when all maps are empty.
  const measure = (): boolean => {
    const before = width;
    width = Math.max(100, widthFor(sentence));
    return width !== before;
  };
  const resize = (): void => {
    if (measure()) {
      redraw();
    }
  };
  new ResizeObserver(resize).observe(sentence);
  onPaper(resize);
  drawJumps();
}

/** The first free piece of a size that the main stream can use. */
function pieceOf(segments: readonly Segment[], size: number): Spot | null {
  for (const [segment, { blocks }] of segments.entries()) {
    const block = blocks.findIndex(
      (piece) => (piece.state === "hole" || piece.state === "cached") && piece.size === size,
    );
    if (block >= 0) {
      return { segment, block };
    }
  }
  return null;
}

function labelOf(memory: Memory, block: Block): string {
  return memory.lines[memory.line[block.allocation]!]?.label ?? "";
}

/** A line with the library's line that it came to: several differ in that only. */
function nameOf(memory: Memory, line: number): string {
  const { label, through } = memory.lines[line] ?? { label: "", through: "" };
  return through === "" ? label : `${label} through ${through}`;
}

/** What each line holds of a segment, the one with the most first. */
function holdersOf(memory: Memory, segment: Segment): [line: number, bytes: number][] {
  const held = new Map<number, number>();
  for (const block of segment.blocks) {
    if (block.state === "used") {
      const line = memory.line[block.allocation]!;
      held.set(line, (held.get(line) ?? 0) + block.size);
    }
  }
  return [...held].sort((a, b) => b[1] - a[1]);
}

function freeIn(segment: Segment): { sum: number; largest: number; state: FreeState | null } {
  let [sum, largest] = [0, 0];
  let state: FreeState | null = null;
  for (const block of segment.blocks) {
    if (block.state !== "used" && block.state !== "pending") {
      sum += block.size;
      largest = Math.max(largest, block.size);
      state = block.state;
    }
  }
  return { sum, largest, state };
}

interface Keeper {
  line: number;
  held: number;
  segments: number;
  holes: number;
}

/** The lines whose blocks live in segments with holes, those with the most holes around them first. */
function keepersOf(memory: Memory, segments: readonly Segment[]): Keeper[] {
  const keepers = new Map<number, Keeper>();
  for (const segment of segments) {
    const { sum, state } = freeIn(segment);
    if (state !== "hole") {
      continue;
    }
    for (const [line, held] of holdersOf(memory, segment)) {
      const keeper = keepers.get(line) ?? { line, held: 0, segments: 0, holes: 0 };
      keeper.held += held;
      keeper.segments += 1;
      keeper.holes += sum;
      keepers.set(line, keeper);
    }
  }
  return [...keepers.values()].sort((a, b) => b.holes - a.holes || b.held - a.held);
}

function describe(memory: Memory, app: App, segment: Segment, index: number): string {
  const block = segment.blocks[index]!;
  const free = FREE.find(({ state }) => state === block.state);
  const what = free ? `${free.one}, ${bytes(block.size)}: ${free.why}` : `In use, ${bytes(block.size)}`;
  if (block.allocation < 0) {
    return `${what}. ${neighbours(memory, segment, index)}`;
  }
  const kind = app.page.kinds[memory.kind[block.allocation]!]?.name ?? "";
  const whose = `${kind} of ${nameOf(memory, memory.line[block.allocation]!)}, ${age(memory, block.allocation, app.store.state.moment)}`;
  return `${what}: ${whose}. ${neighbours(memory, segment, index)}`;
}

function age(memory: Memory, allocation: number, moment: number): string {
  const born = memory.born[allocation]!;
  if (born === 0) {
    return "from before the recording";
  }
  const time = durationInWords(memory, born, moment);
  return `${plural(moment - born, "event")} old${time === null ? "" : ` (${time})`}`;
}

function neighbours(memory: Memory, segment: Segment, index: number): string {
  const name = (block: Block): string => {
    if (block.state === "used") {
      return `${bytes(block.size)} of ${labelOf(memory, block)}`;
    }
    return `${bytes(block.size)} ${block.state === "pending" ? "pending" : "free"}`;
  };
  const before = segment.blocks[index - 1];
  const after = segment.blocks[index + 1];
  if (before === undefined && after === undefined) {
    return "Alone in its segment.";
  }
  return `Before it ${before ? name(before) : "the segment begins"}, after it ${after ? name(after) : "the segment ends"}.`;
}

function describeSegment(memory: Memory, segment: Segment, index: number, of: number): string {
  const { sum, state } = freeIn(segment);
  const holders = holdersOf(memory, segment).slice(0, MOST_HOLDERS);
  const kept =
    state === "hole" && holders.length > 0 ? `, ${bytes(sum)} in holes, kept by ${nameHolders(memory, holders)}` : "";
  return `Segment ${index + 1} of ${of}: ${bytes(segment.size)} at ${address(memory.head.address_base, segment.address)}${traits(segment)}${kept}.`;
}

function nameHolders(memory: Memory, holders: readonly [line: number, bytes: number][]): string {
  return holders.map(([line, held]) => `${nameOf(memory, line)} (${bytes(held)})`).join(", ");
}

function traits(segment: Segment): string {
  return (
    (segment.expandable ? ", expandable" : "") +
    (segment.stream > 0 ? `, stream ${segment.stream}` : "") +
    (segment.pool > 0 ? `, private pool ${segment.pool}` : "")
  );
}

function segmentRow(memory: Memory, segment: Segment): HTMLTableRowElement {
  const { sum, largest, state } = freeIn(segment);
  const used = segment.blocks.reduce((total, block) => (block.state === "used" ? total + block.size : total), 0);
  const why = FREE.find((free) => free.state === state)?.name ?? "";
  const number = (value: number): HTMLElement => el("td", { class: "number" }, bytes(value));
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, address(memory.head.address_base, segment.address)),
    number(segment.size),
    el("td", {}, (segment.small ? "small" : "large") + traits(segment)),
    number(used),
    number(sum),
    el("td", {}, why),
    number(largest),
    el("td", {}, nameHolders(memory, holdersOf(memory, segment).slice(0, MOST_HOLDERS))),
  );
}
