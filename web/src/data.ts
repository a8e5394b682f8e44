// How to read what is in the page. What it is, `schema.ts` says, which is made from its writer's types.
//
// Columns are base64 of raw deflate of LEB128 varints: the browser
// inflates, and the loops here only add up. Of the DOM, nothing but reading <script> elements.

import type { Column, Columns, Page } from "./schema.ts";

export type * from "./schema.ts";

export type ColumnName = keyof Columns;

export const COLUMNS: readonly ColumnName[] = [
  "born",
  "life",
  "shape",
  "address",
  "kind",
  "stack",
  "stream",
  "shapes",
  "addresses",
  "deferred",
  "segments",
  "nodes",
  "stacks",
  "times",
  "annotations",
  "text",
];

/** The page's JSON. */
export function readPage(): Page {
  const page = JSON.parse(scriptText("oomph-page")) as Page;
  if (page.schema !== 1) {
    throw new Error(`this page has schema ${String(page.schema)}, its script reads 1`);
  }
  return page;
}

function scriptText(id: string): string {
  const script = document.getElementById(id);
  if (script === null) {
    throw new Error(`the page lacks its part ${id}: the file is incomplete`);
  }
  return script.textContent ?? "";
}

/** A column's bytes as its writer had them. */
export async function inflated(column: Column): Promise<Uint8Array> {
  const packed = fromBase64(scriptText(column.id));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  try {
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new Error(CUT_SHORT); // the browser speaks of a fetch, and there is none
  }
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = decoded(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) {
    bytes[i] = binary.charCodeAt(i);
  }
  return bytes;
}

const CUT_SHORT = "a column of the page ends early: the file is incomplete";

function decoded(text: string): string {
  try {
    return atob(text);
  } catch {
    throw new Error(CUT_SHORT);
  }
}

/** A reader of LEB128 varints. Exact up to 2^53. */
export class Varints {
  #bytes: Uint8Array;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  /** The next unsigned number. */
  unsigned(): number {
    const first = this.#byte();
    return first < 0x80 ? first : this.#rest(first & 0x7f, 0x80);
  }

  /** The next signed number, zigzag: the sign is the lowest bit. */
  signed(): number {
    const first = this.#byte();
    const low = (first & 0x7f) >> 1;
    // The magnitude is put together without the sign's bit: doubled, it might not be exact.
    const magnitude = first < 0x80 ? low : this.#rest(low, 0x40);
    return (first & 1) === 0 ? magnitude : -magnitude - 1;
  }

  #byte(): number {
    if (this.#at >= this.#bytes.length) {
      throw new Error(CUT_SHORT);
    }
    return this.#bytes[this.#at++];
  }

  #rest(low: number, scale: number): number {
    let value = low;
    for (;;) {
      const byte = this.#byte();
      // Floating point, not shifts: bytes and addresses exceed 32 bits.
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) {
        return value;
      }
      scale *= 128;
    }
  }
}

/** Fills `into` with unsigned varints. A loop of its own: the long columns have a million rows. */
export function readUnsigned<T extends Float64Array | Uint32Array>(bytes: Uint8Array, into: T): T {
  let at = 0;
  for (let row = 0; row < into.length; row++) {
    let byte = bytes[at++];
    let value = byte & 0x7f;
    // In 32 bits while that is exact, which it nearly always is.
    for (let shift = 7; byte >= 0x80 && shift <= 21; shift += 7) {
      byte = bytes[at++];
      value |= (byte & 0x7f) << shift;
    }
    for (let scale = 2 ** 28; byte >= 0x80; scale *= 128) {
      byte = bytes[at++];
      value += (byte & 0x7f) * scale;
    }
    into[row] = value;
  }
  if (at > bytes.length) {
    throw new Error(CUT_SHORT);
  }
  return into;
}

/** Reserved bytes over time of a setting that was tried: `reserved[i]` is the most from `events[i]` to the next. */
export interface Samples {
  events: Float64Array;
  reserved: Float64Array;
}

export async function samplesOf(column: Column): Promise<Samples> {
  return decodeSamples(await inflated(column), column.rows);
}

export function decodeSamples(bytes: Uint8Array, rows: number): Samples {
  const reader = new Varints(bytes);
  const events = new Float64Array(rows);
  const reserved = new Float64Array(rows);
  for (let row = 0, event = 0, held = 0; row < rows; row++) {
    events[row] = event += reader.unsigned();
    reserved[row] = held += reader.signed();
  }
  return { events, reserved };
}
