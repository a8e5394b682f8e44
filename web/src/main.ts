// Reads the page, mounts its views, and connects them.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import "./views.css";
import * as allocations from "./allocations.ts";
import * as allocator from "./allocator.ts";
import type { App, Mount } from "./app.ts";
import type { Page } from "./data.ts";
import { readPage } from "./data.ts";
import * as diff from "./diff.ts";
import { el } from "./dom.ts";
import { Memory } from "./memory.ts";
import { byName } from "./names.ts";
import * as peak from "./peak.ts";
import * as ranks from "./ranks.ts";
import { recent } from "./recent.ts";
import type { State, Store } from "./state.ts";
import { createStore } from "./state.ts";
import type { Themes } from "./theme.ts";
import { createThemes } from "./theme.ts";
import * as timeline from "./timeline.ts";
import * as whatif from "./whatif.ts";

/** The views in the order of the page; the last part says which pages have it, all if it is left out. */
const VIEWS: [id: string, heading: string, mount: Mount, has?: (page: Page) => boolean][] = [
  ["ranks", "Ranks and devices", ranks.mount, (page) => page.mode !== "diff" && page.subjects.length > 1],
  ["diff", "Before and after", diff.mount, (page) => page.diff !== null],
  ["timeline", "Timeline", timeline.mount],
  ["peak", "Held at the chosen moment", peak.mount],
  ["allocator", "The allocator at the chosen moment", allocator.mount],
  ["what-if", "What if", whatif.mount, (page) => page.subjects.some(({ what_if }) => what_if !== null)],
  ["allocations", "Allocations", allocations.mount],
];

/** Subjects whose memory is kept: those of a comparison, and the one that was shown before. */
const KEPT = 3;

declare global {
  interface Window {
    /** For people at the console, and for tests. */
    oomph?: { page: Page; store: Store; memory: () => Memory };
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
  const store = createStore(atPeak(page, page.worst, "kind"));
  const status = el("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });
  let latest = page.worst;
  const app: App = {
    page,
    store,
    memory: () => memory,
    memoryOf,
    async show(subject) {
      latest = subject;
      const loaded = await memoryOf(subject);
      if (latest === subject && store.state.subject !== subject) {
        memory = loaded;
        store.set(atPeak(page, subject, store.state.by));
      }
    },
    theme: themes.theme,
    onTheme: themes.onTheme,
    announce(text) {
      status.textContent = text;
    },
  };
  window.oomph = { page, store, memory: app.memory };

  host.append(status);
  if (page.subjects.length > 1) {
    // Above the answer: that changes with it too.
    (document.getElementById("answer") ?? host).before(subjectChooser(app));
  }
  showAnswer(store.state.subject);
  store.on((now, before) => {
    if (now.subject !== before.subject) {
      showAnswer(now.subject);
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

function atPeak(page: Page, subject: number, by: State["by"]): State {
  const head = page.subjects[subject];
  return { subject, from: 0, to: head.events, moment: head.peak.allocated.moment, by };
}

/** Where things are. In a notebook's frame a link to a part of the page may lead elsewhere, so the script goes there. */
function contents(parts: [id: string, heading: string, ...unknown[]][]): HTMLElement {
  const link = (id: string, heading: string) => {
    const go = (event: Event) => {
      event.preventDefault();
      document.getElementById(id)?.scrollIntoView();
    };
    return el("li", {}, el("a", { href: `#${id}`, onclick: go }, heading));
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
  if (headline !== null && page.mode === "one") {
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
