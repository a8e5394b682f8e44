// A long list in pages: elements are made only for the rows that are shown.

import { el } from "./dom.ts";
import { grouped } from "./format.ts";

/** What can be cut into pages: arrays of any kind. */
interface Rows<Part> {
  readonly length: number;
  slice(from: number, to: number): Part;
}

export interface Pager {
  element: HTMLElement;
  /** The rows of the page that is shown. Says which they are, and `more`; has nothing to say of a single page without that. */
  shown<Part>(rows: Rows<Part>, more?: string): Part;
  /** Goes back to the first page, which the next drawing shows. */
  first(): void;
}

/** Which rows a page has, if it should begin at `first`: never beyond the end. */
export function pageOf(first: number, size: number, rows: number): [from: number, to: number] {
  const from = Math.max(0, Math.min(first, (Math.ceil(rows / size) - 1) * size));
  return [from, Math.min(from + size, rows)];
}

/** Pages of `size` rows; `turned` is called when another is asked for. */
export function createPager(size: number, turned: () => void): Pager {
  let from = 0;
  const which = el("span", { class: "muted", role: "status" });
  const turn = (by: number) => () => {
    from += by;
    turned();
  };
  const back = el("button", { type: "button", onclick: turn(-size) }, "Previous");
  const on = el("button", { type: "button", onclick: turn(size) }, "Next");
  const element = el("div", { class: "pager" }, which, back, on);
  return {
    element,
    shown(rows, more = "") {
      const [begin, end] = pageOf(from, size, rows.length);
      from = begin;
      which.textContent =
        rows.length === 0 ? "None" : `${grouped(begin + 1)}–${grouped(end)} of ${grouped(rows.length)}${more}`;
      element.hidden = rows.length <= size && more === "";
      back.disabled = begin === 0;
      on.disabled = end === rows.length;
      return rows.slice(begin, end);
    },
    first() {
      from = 0;
    },
  };
}
