// The timeline's legend: what each group holds at the chosen moment, and buttons that hide groups.

import type { Child } from "./dom.ts";
import { el, fill } from "./dom.ts";

export interface Entry {
  id: string;
  name: string;
  mark: HTMLElement;
  value: string;
}

export interface Legend {
  element: HTMLElement;
  draw(entries: readonly Entry[]): void;
  hides(id: string): boolean;
  showAll(): void;
}

/** `changed` is called when a group is hidden or shown again. */
export function createLegend(changed: () => void): Legend {
  const hidden = new Set<string>();
  const element = el("ul", {
    class: "legend-list",
    "aria-label": "Groups at the chosen moment; press one to hide or show it",
  });

  const item = ({ id, name, mark, value }: Entry): Child => {
    const toggle = () => {
      if (!hidden.delete(id)) {
        hidden.add(id);
      }
      changed();
    };
    const button = el("button", {
      type: "button",
      title: name,
      "data-group": id,
      "aria-pressed": String(!hidden.has(id)),
      onclick: toggle,
    });
    button.append(mark, el("span", { class: "name" }, name), el("span", { class: "value" }, value));
    return el("li", {}, button);
  };

  return {
    element,
    draw(entries) {
      const focused = element.querySelector<HTMLElement>(":focus")?.dataset.group;
      fill(element, el("li", { class: "lead" }, "At this moment"), ...entries.map(item));
      if (focused !== undefined) {
        element.querySelector<HTMLElement>(`[data-group="${focused}"]`)?.focus();
      }
    },
    hides: (id) => hidden.has(id),
    showAll: () => hidden.clear(),
  };
}

/** A line's mark in the legend. */
export function lineMark(style: "drawn" | "dashed" | "limit"): HTMLElement {
  return el("span", { class: `swatch line ${style}`, "aria-hidden": "true" });
}
