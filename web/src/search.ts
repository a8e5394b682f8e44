// What a search field means: every word of it must be found, in any order, whatever the case.

import type { Kind } from "./data.ts";
import type { Line } from "./memory.ts";

export interface Query {
  words: readonly string[];
  empty: boolean;
  /** Whether a text has every word. The text must be in lower case. */
  matches(text: string): boolean;
}

export function queryOf(text: string): Query {
  const words = text
    .toLowerCase()
    .split(/\s+/)
    .filter((word) => word !== "");
  return { words, empty: words.length === 0, matches: (searched) => words.every((word) => searched.includes(word)) };
}

/** What is searched of a block of memory: the line that asked for it, and its kind. */
export function searched(line: Line | undefined, kind: Kind | undefined): string {
  const of = [line?.label, line?.function, line?.file, line?.through, line?.source, kind?.name, kind?.key];
  return of
    .filter((text) => text !== undefined)
    .join("\n")
    .toLowerCase();
}
