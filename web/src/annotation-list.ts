// What the program named, as a list that keys and readers for the blind get at: the bars below the timeline are for the eye.

import type { Annotation } from "./annotation.ts";
import { el, fill } from "./dom.ts";
import { grouped } from "./format.ts";

/** A program names a few things again and again; who names more finds them by the bars. */
const MOST_NAMES = 200;

export interface Annotations {
  element: HTMLElement;
  /** Shows those of a recording. */
  draw(annotations: readonly Annotation[]): void;
}

/** `show` is asked for a stretch. */
export function createAnnotations(show: (from: number, to: number) => void): Annotations {
  const summary = el("summary");
  const list = el("ul");
  const element = el("details", { class: "annotations" }, summary, list);
  let drawn: readonly Annotation[] | null = null;

  /** One after the other; after the last, the first again. */
  function inTurn(places: readonly Annotation[]): () => void {
    let turn = 0;
    return () => {
      const { from, to } = places[turn++ % places.length];
      show(from, to ?? from);
    };
  }

  return {
    element,
    draw(annotations) {
      if (annotations === drawn) {
        return;
      }
      drawn = annotations;
      const byName = new Map<string, Annotation[]>();
      for (const annotation of annotations) {
        const places = byName.get(annotation.name) ?? [];
        places.push(annotation);
        byName.set(annotation.name, places);
      }
      element.hidden = byName.size === 0;
      summary.textContent = `Annotations (${grouped(byName.size)})`;
      const names = [...byName]
        .slice(0, MOST_NAMES)
        .map(([name, places]) =>
          el(
            "li",
            {},
            el("button", { type: "button", class: "quiet", onclick: inTurn(places) }, name),
            el("span", { class: "muted" }, ` ×${grouped(places.length)}`),
          ),
        );
      const more = byName.size - names.length;
      fill(list, ...names, more > 0 && el("li", { class: "muted" }, `and ${grouped(more)} more`));
    },
  };
}
