// The head of a table that can be sorted by each of its columns.

import { el } from "./dom.ts";
import { byName } from "./names.ts";

export interface Field<Row> {
  name: string;
  /** What to sort by; a column without it cannot be sorted by. */
  value?: (row: Row) => number | string;
  /** Numbers stand to the right, and the largest come first. */
  numeric?: boolean;
}

export interface TableHead<Row> {
  element: HTMLTableSectionElement;
  /** The rows in the chosen order. */
  sorted(rows: readonly Row[]): Row[];
}

/** Sorted by the field at `first` until another is chosen; `changed` is called then. */
export function tableHead<Row>(fields: readonly Field<Row>[], first: number, changed: () => void): TableHead<Row> {
  let by = first;
  let down = fields[first]?.numeric ?? false;
  const cells = fields.map((field, index) => {
    const cell = el("th", { scope: "col", class: field.numeric ? "number" : null });
    if (field.value === undefined) {
      cell.append(field.name);
      return cell;
    }
    const choose = (): void => {
      down = by === index ? !down : (field.numeric ?? false);
      by = index;
      mark();
      changed();
    };
    cell.append(el("button", { type: "button", class: "sort", onclick: choose }, field.name));
    return cell;
  });
  const mark = (): void => {
    cells.forEach((cell, index) => {
      if (fields[index]?.value !== undefined) {
        cell.setAttribute("aria-sort", index === by ? (down ? "descending" : "ascending") : "none");
      }
    });
  };
  mark();
  return {
    element: el("thead", {}, el("tr", {}, ...cells)),
    sorted(rows) {
      const value = fields[by]?.value;
      if (value === undefined) {
        return [...rows];
      }
      const keyed = rows.map((row) => ({ row, key: value(row) }));
      keyed.sort((a, b) => compare(a.key, b.key) * (down ? -1 : 1));
      return keyed.map(({ row }) => row);
    },
  };
}

function compare(a: number | string, b: number | string): number {
  return typeof a === "number" && typeof b === "number" ? a - b : byName(String(a), String(b));
}
