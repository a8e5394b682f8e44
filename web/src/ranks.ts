// Many subjects at a glance: a small timeline for each to the same scale, the worst first, and a table.
//
// A subject's columns are read when its picture comes into sight, one subject at a time, and dropped again: sixty-four recordings
// would not fit into a browser's memory at once.

import type { App } from "./app.ts";
import type { SubjectHead } from "./data.ts";
import { el, fill, svg } from "./dom.ts";
import { bytes, grouped, percent, plural } from "./format.ts";
import { Memory } from "./memory.ts";
import { byName } from "./names.ts";
import { eventScale, hasTime, spanOf, timeScale } from "./scale.ts";
import type { Field } from "./table-head.ts";
import { tableHead } from "./table-head.ts";
import { wordsOf, wordsOfAll } from "./words.ts";

/** The size of a picture, in its own units. */
const WIDTH = 200;
const HEIGHT = 64;
/** With no more allocations than this in all, pictures out of sight are made as well: they may be printed. */
const QUICK = 3_000_000;
/** Milliseconds that the rest of the page has before that. */
const LATER = 500;
/** How close to the window a picture is made. */
const NEAR = "300px";

interface Rank {
  subject: number;
  head: SubjectHead;
  /** The title without what all have. */
  title: string;
}

export function mount(host: HTMLElement, app: App): void {
  const ranks = worstFirst(app);
  const most = Math.max(1, ...ranks.map(({ head }) => Math.max(head.peak.reserved.bytes, head.peak.allocated.bytes)));
  const cards = new Map(ranks.map((rank) => [rank.subject, card(app, rank)]));
  const drawn = new Set<number>();
  const draw = oneAtATime(async (subject: number) => {
    if (drawn.has(subject)) {
      return;
    }
    drawn.add(subject);
    const place = cards.get(subject)?.querySelector(".rank-picture");
    try {
      const memory = subject === app.store.state.subject ? app.memory() : await Memory.load(app.page, subject);
      place?.replaceChildren(picture(memory, most));
    } catch (error) {
      // The others are drawn all the same.
      place?.replaceChildren(el("span", { class: "failure" }, error instanceof Error ? error.message : String(error)));
    }
  });

  const seen = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting && target instanceof HTMLElement) {
          seen.unobserve(target);
          draw(Number(target.dataset.subject));
        }
      }
    },
    { rootMargin: NEAR },
  );
  cards.forEach((element) => seen.observe(element));
  if (ranks.reduce((sum, { head }) => sum + head.columns.born.rows, 0) <= QUICK) {
    setTimeout(() => cards.forEach((_, subject) => draw(subject)), LATER);
  }

  const died = ranks.filter(({ head }) => head.ooms.some(({ fatal }) => fatal)).length;
  const low = Math.min(...ranks.map(({ head }) => head.peak.allocated.bytes));
  const words = wordsOfAll(ranks.map(({ head }) => head));
  const high = Math.max(...ranks.map(({ head }) => head.peak.allocated.bytes));
  host.append(
    el(
      "p",
      {},
      `${plural(ranks.length, "timeline")} to the same scale (${bytes(most)}), the worst first. Peaks of what is ${words.held} from ${bytes(low)} to ${bytes(high)}`,
      died > 0 && `; ${grouped(died)} ran out of memory`,
      ". A click shows that one in the whole page.",
    ),
    el(
      "p",
      { class: "rank-key muted", "aria-hidden": "true" },
      el("span", { class: "allocated" }),
      words.held,
      el("span", { class: "reserved" }),
      words.taken,
      el("span", { class: "peak" }),
      "peak",
      ...(ranks.some(({ head }) => head.ram === null)
        ? [el("span", { class: "limit" }), "limit", el("span", { class: "oom" }), "out of memory"]
        : []),
    ),
    el("div", { class: "rank-cards" }, ...cards.values()),
    table(app, ranks),
  );

  const mark = (): void => {
    for (const button of host.querySelectorAll<HTMLElement>("button[data-subject]")) {
      button.toggleAttribute("aria-current", button.dataset.subject === String(app.store.state.subject));
    }
  };
  app.store.on((now, before) => {
    if (now.subject !== before.subject) {
      mark();
    }
  });
  mark();
}

/** The worst is the one that the page opens with; after it those that died, then the fullest. */
function worstFirst(app: App): Rank[] {
  const { subjects } = app.page;
  const folders = commonFolders(subjects.map(({ title }) => title));
  const devices = subjects.every(({ recording }) => recording === subjects[0]!.recording);
  const ranks = subjects.map((head, subject) => ({
    subject,
    head,
    title: devices && head.device !== null ? `device ${head.device}` : head.title.slice(folders),
  }));
  const weight = ({ subject, head }: Rank): number =>
    subject === app.page.worst ? 2 : head.ooms.some(({ fatal }) => fatal) ? 1 : 0;
  return ranks.sort(
    (a, b) =>
      weight(b) - weight(a) || b.head.peak.allocated.bytes - a.head.peak.allocated.bytes || byName(a.title, b.title),
  );
}

/** How long the folders are that all titles begin with. */
function commonFolders(titles: readonly string[]): number {
  const [first = "", ...others] = titles;
  let common = first.lastIndexOf("/") + 1;
  while (common > 0 && !others.every((title) => title.startsWith(first.slice(0, common)))) {
    common = first.lastIndexOf("/", common - 2) + 1;
  }
  return common;
}

function card(app: App, { subject, head, title }: Rank): HTMLElement {
  const oom = head.ooms.length > 0;
  return el(
    "button",
    {
      type: "button",
      class: `rank-card${subject === app.page.worst ? " worst" : ""}`,
      "data-subject": subject,
      onclick: () => void app.show(subject),
    },
    el(
      "span",
      { class: "rank-title" },
      el("span", { class: "name", title: head.title }, title),
      subject === app.page.worst && el("span", { class: "badge worst" }, "worst"),
    ),
    el(
      "span",
      { class: "rank-picture", "aria-hidden": "true" },
      el("span", { class: "muted" }, "Drawn when it is scrolled to."),
    ),
    el(
      "span",
      { class: "rank-numbers" },
      el("span", {}, el("b", {}, bytes(head.peak.allocated.bytes)), ` ${wordsOf(head).held}`),
      el("span", {}, `${bytes(head.peak.reserved.bytes)} ${wordsOf(head).taken}`),
      oom && el("span", { class: "rank-oom" }, "out of memory"),
      head.alike && el("span", { title: head.alike.names }, `${grouped(head.alike.count)} more did the same`),
    ),
  );
}

/** Calls `work` for what is asked for, one after the other, with time for the page between. */
function oneAtATime(work: (item: number) => Promise<void>): (item: number) => void {
  const waiting: number[] = [];
  let busy = false;
  const run = async (): Promise<void> => {
    busy = true;
    for (let item = waiting.shift(); item !== undefined; item = waiting.shift()) {
      await work(item);
      await new Promise((resolve) => setTimeout(resolve));
    }
    busy = false;
  };
  return (item) => {
    waiting.push(item);
    if (!busy) {
      void run();
    }
  };
}

function picture(memory: Memory, most: number): SVGElement {
  const { head } = memory;
  const scale = hasTime(head) ? timeScale(memory, spanOf(head)[1]) : eventScale(memory);
  const { allocated, reserved } = memory.timeline("kind", 0, scale.end, WIDTH, scale);
  const x = (moment: number): number => (WIDTH * scale.of(moment)) / Math.max(1, scale.end);
  const y = (value: number): number => Math.round((HEIGHT - (HEIGHT - 4) * (value / most)) * 10) / 10;
  const across = (values: Float64Array): string => {
    const step = WIDTH / values.length;
    return Array.from(
      values,
      (value, column) => `L${(column * step).toFixed(1)} ${y(value)}H${((column + 1) * step).toFixed(1)}`,
    )
      .join("")
      .slice(1);
  };
  const limit = head.limit !== null && head.limit.bytes <= most ? y(head.limit.bytes) : null;
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" },
    svg("path", { class: "allocated", d: `M0 ${HEIGHT}L${across(allocated)}V${HEIGHT}Z` }),
    svg("path", { class: "reserved", d: `M${across(reserved)}` }),
    limit !== null && svg("path", { class: "limit", d: `M0 ${limit}H${WIDTH}` }),
    ...head.ooms.map(({ moment, fatal }) =>
      svg("path", { class: fatal ? "oom fatal" : "oom", d: `M${x(moment).toFixed(1)} 0V${HEIGHT}` }),
    ),
    svg("path", { class: "peak", d: `M${x(head.peak.allocated.moment).toFixed(1)} ${y(head.peak.allocated.bytes)}h0` }),
  );
}

/** What only the memory of GPUs has. */
const OF_GPUS: Field<Rank>[] = [
  {
    name: "Of the limit",
    numeric: true,
    value: ({ head }) => (head.limit ? head.peak.reserved.bytes / head.limit.bytes : 0),
  },
  { name: "Out of memory", numeric: true, value: ({ head }) => head.ooms.length },
  { name: "Peak in step", numeric: true, value: ({ head }) => head.peak.step ?? 0 },
];

function table(app: App, ranks: readonly Rank[]): HTMLElement {
  const body = el("tbody");
  const words = wordsOfAll(ranks.map(({ head }) => head));
  const ofGpus = ranks.some(({ head }) => head.ram === null);
  const standsForOthers = ranks.some(({ head }) => head.alike);
  const head = tableHead<Rank>(
    [
      { name: "Recording or device", value: ({ title }) => title },
      ...(standsForOthers
        ? [{ name: "Ranks", numeric: true, value: ({ head }: Rank) => 1 + (head.alike?.count ?? 0) }]
        : []),
      { name: `Peak ${words.held}`, numeric: true, value: ({ head }) => head.peak.allocated.bytes },
      { name: `Peak ${words.taken}`, numeric: true, value: ({ head }) => head.peak.reserved.bytes },
      ...(ofGpus ? OF_GPUS : []),
      { name: "Where the peak is reached", value: ({ head }) => head.peak.place },
    ],
    standsForOthers ? 2 : 1,
    () => draw(),
  );
  const number = (text: string): HTMLElement => el("td", { class: "number" }, text);
  const draw = (): void =>
    fill(
      body,
      ...head.sorted(ranks).map(({ subject, title, head: of }) =>
        el(
          "tr",
          {},
          el(
            "th",
            { scope: "row" },
            el(
              "button",
              {
                type: "button",
                class: "link",
                "data-subject": subject,
                "aria-current": subject === app.store.state.subject,
                onclick: () => void app.show(subject),
              },
              title,
            ),
            subject === app.page.worst && el("span", { class: "badge worst" }, "worst"),
          ),
          standsForOthers && number(grouped(1 + (of.alike?.count ?? 0))),
          number(bytes(of.peak.allocated.bytes)),
          number(bytes(of.peak.reserved.bytes)),
          ofGpus && number(of.limit ? percent(of.peak.reserved.bytes, of.limit.bytes) : "–"),
          ofGpus && number(of.ooms.length > 0 ? grouped(of.ooms.length) : "–"),
          ofGpus && number(of.peak.step === null ? "–" : grouped(of.peak.step)),
          el("td", { class: "place" }, of.peak.place),
        ),
      ),
    );
  draw();
  return el(
    "div",
    { class: "scroller" },
    el("table", { class: "rank-table" }, el("caption", {}, "Peaks of every recording and device"), head.element, body),
  );
}
