// What if: the settings that `oomph tune` tried, and what each would have reserved over time.

import type { App } from "./app.ts";
import type { Samples, Trial, WhatIf } from "./data.ts";
import { samplesOf } from "./data.ts";
import { el, fill, swatch } from "./dom.ts";
import { bytes, grouped } from "./format.ts";
import type { LineChart } from "./line-chart.ts";
import { lineChart } from "./line-chart.ts";
import { eventAxis } from "./moment.ts";
import { whenSeen } from "./redraw.ts";
import { colour } from "./theme.ts";

const COLUMNS = 800;
const HEIGHT = 240;
/** Colours of trials, in the style sheet as --series-1 and so on. */
const COLOURS = 12;
const DEFAULTS = "PyTorch's defaults";
const FITS = { yes: "fits", maybe: "may fit", no: "does not fit" } as const;
/** Of a recording that ends where the program died: what it would have needed afterwards is not known. */
const PAST_DEATH = { yes: "gets past the death", maybe: "may get past it", no: "dies" } as const;

export function mount(host: HTMLElement, app: App): void {
  const content = el("div");
  const chart = lineChart("Reserved bytes of the chosen settings over time", HEIGHT, (moment) =>
    app.store.set({ moment }),
  );
  host.append(content);
  let draw: (() => void) | null = null;

  function build(): void {
    const found = app.memory().head.what_if;
    host.hidden = found === null;
    draw = found && found.trials.length > 0 ? show(content, app, found, chart) : null;
    redraw();
  }
  const redraw = whenSeen(host, () => draw?.());

  app.store.on((now, before) => {
    if (now.subject !== before.subject) {
      build();
    } else if (now.from !== before.from || now.to !== before.to) {
      redraw();
    }
  });
  app.onTheme(() => redraw());
  build();
}

/** Fills `content`, and gives the function that draws the chart. */
function show(content: HTMLElement, app: App, found: WhatIf, chart: LineChart): () => void {
  const samples = new Map<Trial, Samples>();
  const chosen = new Set(found.trials.filter((trial) => trial.recorded || trial.best));
  const nameOf = (trial: Trial): string => trial.conf || DEFAULTS;
  const colourOf = (trial: Trial): string =>
    trial.recorded ? colour("--reserved-recorded") : colour(`--series-${(found.trials.indexOf(trial) % COLOURS) + 1}`);

  async function draw(): Promise<void> {
    const missing = [...chosen].filter((trial) => !samples.has(trial));
    await Promise.all(missing.map(async (trial) => samples.set(trial, await samplesOf(trial.samples))));
    const memory = app.memory();
    if (memory.head.what_if !== found) {
      return; // another subject is shown by now
    }
    const scale = app.scale();
    const [from, to] = [scale.at(app.store.state.from), scale.at(app.store.state.to)];
    const recorded = memory.timeline("kind", from, to, COLUMNS);
    const trials = found.trials.filter((trial) => chosen.has(trial) && samples.has(trial));
    chart.show(eventAxis(memory, recorded.starts), [
      {
        name: "recorded",
        colour: colour("--reserved-recorded"),
        values: recorded.reserved,
        width: 1,
        fill: colour("--reserved-area"),
      },
      ...trials.map((trial) => ({
        name: trial.recorded ? `${nameOf(trial)}, replayed` : nameOf(trial),
        colour: colourOf(trial),
        values: mostIn(samples.get(trial)!, recorded.starts, to, trial.fit === "no"),
        width: trial.best ? 2.5 : 1.5,
        ...(trial.recorded ? { dash: [4, 3] } : {}),
      })),
      {
        name: "lower bound",
        colour: colour("--bound"),
        values: Array.from(recorded.starts, () => found.lower_bound),
        width: 1,
        dash: [2, 4],
      },
    ]);
  }

  // Whether any fits is only known where some memory was asked about.
  const asked = found.trials.some(({ fit }) => fit !== null);
  const rows = found.trials.map((trial) => {
    const box = el("input", { type: "checkbox", checked: chosen.has(trial), "aria-label": `Draw ${nameOf(trial)}` });
    box.addEventListener("change", () => {
      if (box.checked) {
        chosen.add(trial);
      } else {
        chosen.delete(trial);
      }
      void draw();
    });
    const number = (value: number | null, text: (value: number) => string): HTMLElement =>
      el("td", { class: "number" }, value === null ? "–" : text(value));
    return el(
      "tr",
      { class: trial.best ? "best" : null },
      el("td", {}, el("label", { class: "whatif-draw" }, box, swatch(colourOf(trial)))),
      el(
        "th",
        { scope: "row" },
        trial.conf ? el("code", {}, trial.conf) : DEFAULTS,
        trial.recorded && el("span", { class: "badge" }, "recorded"),
        trial.best && el("span", { class: "badge best" }, "best"),
      ),
      asked && el("td", {}, trial.fit === null ? "–" : (found.died ? PAST_DEATH : FITS)[trial.fit]),
      number(trial.peak_reserved, bytes),
      number(trial.least, bytes),
      number(trial.retries, grouped),
    );
  });

  fill(
    content,
    el("p", { class: "whatif-verdict" }, found.verdict),
    found.paste !== null && pasteLine(found.paste),
    el(
      "div",
      { class: "scroller" },
      el(
        "table",
        { class: "whatif-table" },
        el(
          "caption",
          {},
          `Settings tried by replaying the recording${found.memory === null ? "" : `, ${found.memory}`}`,
        ),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { scope: "col" }, "Draw"),
            el("th", { scope: "col" }, "Setting"),
            asked && el("th", { scope: "col" }, found.died ? "Outcome" : "Fits"),
            ...["Peak reserved", "Least memory", "Retries"].map((name) =>
              el("th", { scope: "col", class: "number" }, name),
            ),
          ),
        ),
        el("tbody", {}, ...rows),
      ),
    ),
    el(
      "p",
      { class: "muted" },
      `No allocator needs less than ${bytes(found.lower_bound)}, which is what the program holds at its peak. ` +
        "Peak reserved is with room to spare; each retry waits for the device.",
    ),
    chart.element,
    ...found.doubts.map((doubt) => el("p", { class: "muted" }, `Not exact: ${doubt}`)),
  );
  return () => void draw();
}

/** A line to copy. Where the clipboard is closed (a page in a frame), the line is selected instead. */
function pasteLine(line: string): HTMLElement {
  const code = el("code", {}, line);
  const button = el(
    "button",
    {
      type: "button",
      class: "copy",
      onclick: () => {
        const select = (): void => {
          window.getSelection()?.selectAllChildren(code);
          button.textContent = "Selected: press Ctrl+C";
        };
        if (navigator.clipboard === undefined) {
          select();
        } else {
          navigator.clipboard.writeText(line).then(() => {
            button.textContent = "Copied";
          }, select);
        }
      },
    },
    "Copy",
  );
  return el("p", { class: "paste" }, code, button);
}

/** The most reserved in each stretch that begins at one of `starts`. A replay that died has nothing after its last sample. */
export function mostIn(samples: Samples, starts: ArrayLike<number>, to: number, died: boolean): (number | null)[] {
  const { events, reserved } = samples;
  const known = died ? (events[events.length - 1] ?? 0) : Infinity;
  let next = 0;
  return Array.from({ length: starts.length }, (_, column) => {
    const from = starts[column]!;
    const end = column + 1 < starts.length ? starts[column + 1]! : to + 1;
    if (from > known || events.length === 0) {
      return null;
    }
    while (next < events.length && events[next]! <= from) {
      next++;
    }
    let most = reserved[Math.max(0, next - 1)]!;
    for (; next < events.length && events[next]! < end; next++) {
      most = Math.max(most, reserved[next]!);
    }
    return most;
  });
}
