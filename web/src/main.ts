// Reads the page, mounts its views, and connects them.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import "./views.css";
import * as allocations from "./allocations.ts";
import * as allocator from "./allocator.ts";
import type { App, Mount } from "./app.ts";
import type { Page, SubjectHead } from "./data.ts";
import { readPage } from "./data.ts";
import * as diff from "./diff.ts";
import { el } from "./dom.ts";
import { Memory } from "./memory.ts";
import { byName } from "./names.ts";
import * as peak from "./peak.ts";
import * as ranks from "./ranks.ts";
import { recent } from "./recent.ts";
import type { Scale } from "./scale.ts";
import { eventScale, hasTime, spanOf, timeScale } from "./scale.ts";
import type { State, Store } from "./state.ts";
import { createStore } from "./state.ts";
import type { Themes } from "./theme.ts";
import { createThemes } from "./theme.ts";
import * as timeline from "./timeline.ts";
import * as whatif from "./whatif.ts";

const isOfGpu = (head: SubjectHead): boolean => head.ram === null;

/** The views in the order of the page; the last part says which pages have it, all if it is left out. */
const VIEWS: [id: string, heading: string, mount: Mount, has?: (page: Page) => boolean][] = [
  ["ranks", "Ranks and devices", ranks.mount, (page) => page.subjects.some(isOfGpu) && hasSeveral(page)],
  ["ranks", "Processes", ranks.mount, (page) => !page.subjects.some(isOfGpu) && hasSeveral(page)],
  ["diff", "Before and after", diff.mount, (page) => page.diff !== null],
  ["timeline", "Timeline", timeline.mount],
  ["peak", "Held at the chosen moment", peak.mount],
  ["allocator", "The allocator at the chosen moment", allocator.mount, (page) => page.subjects.some(isOfGpu)],
  ["what-if", "What if", whatif.mount, (page) => page.subjects.some(({ what_if }) => what_if !== null)],
  ["allocations", "Allocations", allocations.mount],
];

/** Two that are drawn over the same time need no small pictures. */
function hasSeveral({ mode, subjects }: Page): boolean {
  return mode !== "diff" && subjects.length > (mode === "together" ? 2 : 1);
}

/** Subjects whose memory is kept: those of a comparison, and the one that was shown before. */
const KEPT = 3;

declare global {
  interface Window {
    /** For people at the console, and for tests. */
    oomph?: { page: Page; store: Store; memory: () => Memory; scale: App["scale"] };
  }
}

async function main(host: HTMLElement): Promise<void> {
  const page = readPage();
  const themes = createThemes();
  document.querySelector(".oomph-header")?.append(themes.button);
  if (page.subjects.length > 0) {
    await showViews(host, page, themes); // else the answer says why there is nothing
  }
  document.documentElement.dataset.ready = "true";
}

async function showViews(host: HTMLElement, page: Page, themes: Themes): Promise<void> {
  const memoryOf = recent(KEPT, (subject) => Memory.load(page, subject));
  let memory = await memoryOf(page.worst);
  const store = createStore(atPeak(memory, "kind"));
  const status = el("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });
  let latest = page.worst;
  const app: App = {
    page,
    store,
    memory: () => memory,
    scale: (of = memory, axis = store.state.axis) => scaleOf(of, axis),
    position: () => store.state.at ?? app.scale().of(store.state.moment),
    memoryOf,
    async show(subject) {
      latest = subject;
      const loaded = await memoryOf(subject);
      if (latest === subject && store.state.subject !== subject) {
        const [before, { axis, by }, at] = [memory, store.state, app.position()];
        memory = loaded;
        const isBeside = before.head.beside?.subject === subject && axis === "time" && hasTime(loaded.head);
        store.set(isBeside ? { subject, moment: scaleOf(loaded, axis).at(at), at } : atPeak(loaded, by));
      }
    },
    theme: themes.theme,
    onTheme: themes.onTheme,
    announce(text) {
      status.textContent = text;
    },
  };
  window.oomph = { page, store, memory: app.memory, scale: app.scale };

  host.append(status);
  if (page.subjects.length > 1) {
    // Above the answer: that changes with it too.
    (document.getElementById("answer") ?? host).before(subjectChooser(app));
  }
  showAnswer(store.state.subject);
  document.documentElement.dataset.memory = memory.head.ram === null ? "gpu" : "ram";
  store.on((now, before) => {
    if (now.subject !== before.subject) {
      showAnswer(now.subject);
      document.documentElement.dataset.memory = memory.head.ram === null ? "gpu" : "ram";
      showHeadline(page, now.subject);
    }
  });
  const views = VIEWS.filter(([, , , has]) => has?.(page) ?? true);
  document.querySelector("main")?.before(contents([["answer", "Answer"], ...views]));
  for (const [id, heading, mount] of views) {
    const section = el("section", { id, class: "view", "aria-labelledby": `${id}-heading` });
    section.append(el("h2", { id: `${id}-heading` }, heading));
    host.append(section);
    mount(section, app);
    // What is on top of the page is seen before what is below is made.
    await new Promise((resolve) => setTimeout(resolve));
  }
}

function atPeak(memory: Memory, by: State["by"]): State {
  const { head, page } = memory;
  const axis = hasTime(head) ? "time" : "events";
  const { end } = scaleOf(memory, axis);
  return {
    subject: page.subjects.indexOf(head),
    axis,
    from: 0,
    to: end,
    moment: head.peak.allocated.moment,
    at: null,
    by,
  };
}

/** By time, what is drawn together has one scale. */
function scaleOf(memory: Memory, axis: State["axis"]): Scale {
  const { head, page } = memory;
  if (axis === "events" || !hasTime(head)) {
    return eventScale(memory);
  }
  const beside = head.beside?.offset == null ? [] : [page.subjects[head.beside.subject]];
  return timeScale(memory, Math.max(...[head, ...beside].map((one) => spanOf(one)[1])));
}

/** Where things are. In a notebook's frame a link to a part of the page may lead elsewhere, so the script goes there. */
function contents(parts: [id: string, heading: string, ...unknown[]][]): HTMLElement {
  const link = (id: string, heading: string) => {
    const go = (event: Event) => {
      event.preventDefault();
      document.getElementById(id)?.scrollIntoView();
    };
    return el("li", { "data-part": id }, el("a", { href: `#${id}`, onclick: go }, heading));
  };
  return el(
    "nav",
    { class: "contents", "aria-label": "Contents" },
    el("ul", {}, ...parts.map(([id, heading]) => link(id, heading))),
  );
}

/** Subjects as they are chosen: ranks in the order of their names, both sides of a comparison by what they are. */
function subjectNames(page: Page): { subject: number; name: string }[] {
  const side = (subject: number): string => {
    const device = page.diff?.find(({ before, after }) => before === subject || after === subject);
    return device === undefined ? "" : device.before === subject ? "before: " : "after: ";
  };
  const names = page.subjects.map(({ title }, subject) => ({ subject, name: side(subject) + title }));
  return page.mode === "ranks" ? names.sort((a, b) => byName(a.name, b.name)) : names;
}

function subjectChooser(app: App): HTMLElement {
  const select = el("select", { onchange: () => void app.show(Number(select.value)) });
  for (const { subject, name } of subjectNames(app.page)) {
    select.append(el("option", { value: subject, selected: subject === app.store.state.subject }, name));
  }
  app.store.on((now) => {
    select.value = String(now.subject);
  });
  return el("nav", { class: "subjects", "aria-label": "Device" }, el("label", {}, "Shown: ", select));
}

/** The sentence on top of the page; what compares recordings holds for all of them. */
function showHeadline(page: Page, subject: number): void {
  const headline = document.querySelector(".oomph-header h1");
  if (headline !== null && (page.mode === "one" || page.mode === "together")) {
    headline.textContent = page.subjects[subject].headline;
  }
}

function showAnswer(subject: number): void {
  for (const answer of document.querySelectorAll<HTMLElement>(".answer[data-subject]")) {
    answer.hidden = answer.dataset.subject !== String(subject);
  }
}

const host = document.getElementById("app");
if (host !== null) {
  main(host).catch((error: unknown) => {
    const what = error instanceof Error ? error.message : String(error);
    host.append(el("p", { class: "failure", role: "alert" }, `The charts could not be drawn: ${what}`));
    throw error;
  });
}
