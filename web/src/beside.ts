// The other memory of the same run, a GPU's or RAM, below the timeline and over the same time. A moment that is chosen in one is shown in
// the other.

import type { App } from "./app.ts";
import type { Gestures } from "./chart.ts";
import { createChart } from "./chart.ts";
import { el, fill } from "./dom.ts";
import { factsOf } from "./facts.ts";
import { timeWithin } from "./format.ts";
import type { Shown } from "./groups.ts";
import { areasOf, entriesAt, FILES, LIMIT, RESERVED } from "./groups.ts";
import { createLegend } from "./legend.ts";
import type { Memory, Timeline } from "./memory.ts";
import { Palette } from "./palette.ts";
import { createTip } from "./tip.ts";

export interface Besides {
  element: HTMLElement;
  /** Draws it for the view of the store. */
  draw(): void;
  /** Shows the moment of the store. */
  drawMoment(): void;
  resize(width: number): void;
}

/** `gestures` are those of the timeline; a click chooses a position. */
export function createBeside(
  app: App,
  slots: number,
  gestures: Omit<Gestures, "hover" | "choose">,
  choose: (position: number) => void,
): Besides {
  const { store, page } = app;
  const palette = new Palette();
  let width = 0;
  let memory: Memory | null = null;
  let timeline: Timeline | null = null;
  let areas: Shown[] = [];

  const chart = createChart(slots, {
    ...gestures,
    hover(column, x) {
      if (column === null || timeline === null || memory === null) {
        tip.hide();
      } else {
        tip.show(memory, timeline, shownAreas(), column, x, width);
      }
    },
    choose: (_, position) => choose(position),
  });
  const tip = createTip();
  const legend = createLegend(() => draw());
  const heading = el("h3", { class: "beside-heading" });
  const readout = el("p", { class: "readout" });
  chart.element.append(tip.element);
  chart.element.setAttribute("role", "img");
  chart.element.setAttribute("aria-label", "The other memory of the same run");
  const drawn = el("div", {}, readout, chart.element, legend.element);
  const element = el(
    "div",
    { class: "beside", hidden: true },
    heading,
    page.subjects.some(({ beside }) => beside !== null) && drawn,
  );
  const shownAreas = () => areas.filter(({ id }) => !legend.hides(id));

  /** Reads it, and draws it when it is there. */
  async function read(subject: number): Promise<void> {
    const found = await app.memoryOf(subject);
    if (app.memory().head.beside?.subject === subject) {
      memory = found;
      draw();
    }
  }

  function draw(): void {
    const { head } = app.memory();
    const { beside } = head;
    element.hidden = beside === null || (beside.offset !== null && store.state.axis === "events");
    if (beside === null || element.hidden) {
      return;
    }
    const other = page.subjects[beside.subject];
    drawn.hidden = beside.offset === null;
    if (beside.offset === null) {
      heading.textContent = `${other.title} was recorded at another time: the two are not drawn together. It is shown by itself when it is chosen above.`;
      return;
    }
    heading.replaceChildren(
      other.ram === null ? "The GPU’s memory over the same time: " : "RAM over the same time: ",
      el("button", { type: "button", class: "link", onclick: () => void app.show(beside.subject) }, other.title),
    );
    chart.element.setAttribute("aria-label", `${other.title} over the same time`);
    if (memory?.head !== other) {
      memory = null;
      timeline = null;
      legend.showAll();
      void read(beside.subject);
      return;
    }
    if (width === 0) {
      return;
    }
    const { by, from, to } = store.state;
    const scale = app.scale(memory);
    timeline = memory.timeline(by, from, to, chart.columns(), scale);
    areas = areasOf(page, palette, timeline);
    chart.draw({
      timeline,
      areas: shownAreas(),
      lines: [legend.hides(RESERVED) ? null : timeline.reserved, legend.hides(FILES) ? null : timeline.files],
      limit: !legend.hides(LIMIT),
      head: other,
      scale,
      label: (position) => [timeWithin(position / 1e6, (to - from) / 1e6)],
    });
    drawMoment();
  }

  function drawMoment(): void {
    if (memory === null || timeline === null || element.hidden) {
      return;
    }
    const position = app.position();
    const moment = app.scale(memory).at(position);
    chart.mark(position);
    fill(readout, ...factsOf(memory, moment, position / 1e6).map((fact, i) => el(i === 0 ? "b" : "span", {}, fact)));
    legend.draw(entriesAt(memory, store.state.by, moment, areas, chart.limitIsBeyond()));
  }

  return {
    element,
    draw,
    drawMoment,
    resize(to) {
      width = to;
      chart.resize(to);
    },
  };
}
