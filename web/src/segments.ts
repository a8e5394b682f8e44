// What is taken from the device at a moment, what lies in it, and which bytes of it were not requested.
//
// The same accounts as `crates/oomph-explain/src/waste.rs`, by the same rules: expandable pieces that touch are one
// segment, free bytes are seen by the stream with the most memory of the default pool.

import type { Waste } from "./data.ts";
import { Varints } from "./data.ts";
import { countWhile } from "./sorting.ts";

export type BlockState = "used" | "pending" | "hole" | "cached" | "other stream" | "private";

export interface Block {
  address: number;
  size: number;
  /** Whose it is; -1: it is free. */
  allocation: number;
  state: BlockState;
}

/** A piece of memory taken from the device. */
export interface Range {
  address: number;
  size: number;
  stream: number;
  /** 0 is the default one. */
  pool: number;
  small: boolean;
  expandable: boolean;
  /** The line that asked for it; -1: not known. */
  line: number;
}

export interface Segment extends Range {
  blocks: Block[];
}

/** Something that lies in a segment. */
export interface Occupant {
  address: number;
  size: number;
  allocation: number;
  /** Let go by the program, held for another stream. */
  pending: boolean;
}

const SMALL = 1;
const EXPANDABLE = 2;

/** Every change to what is taken from the device. */
export class SegmentLog {
  readonly moments: Float64Array;
  /** Reserved bytes after each change. */
  readonly reserved: Float64Array;
  #taken: Uint8Array;
  #ranges: Range[];
  /** The ranges after the first `#applied` changes, by address: most questions ask for a later moment than the last. */
  #now: Range[] = [];
  #applied = 0;

  constructor(bytes: Uint8Array, rows: number) {
    const reader = new Varints(bytes);
    this.moments = new Float64Array(rows);
    this.reserved = new Float64Array(rows);
    this.#taken = new Uint8Array(rows);
    this.#ranges = [];
    for (let row = 0, moment = 0, address = 0, reserved = 0; row < rows; row++) {
      moment += reader.unsigned();
      const taken = reader.unsigned();
      address += reader.signed();
      const size = reader.unsigned();
      const stream = reader.unsigned();
      const pool = reader.unsigned();
      const flags = reader.unsigned();
      const line = reader.unsigned() - 1;
      const small = (flags & SMALL) !== 0;
      const expandable = (flags & EXPANDABLE) !== 0;
      this.#ranges.push({ address, size, stream, pool, small, expandable, line });
      this.moments[row] = moment;
      this.#taken[row] = taken;
      reserved = Math.max(0, reserved + (taken === 1 ? size : -size));
      this.reserved[row] = reserved;
    }
  }

  /** The ranges after the first `changes` changes, by address. */
  after(changes: number): readonly Range[] {
    if (changes < this.#applied) {
      this.#now = [];
      this.#applied = 0;
    }
    for (; this.#applied < changes; this.#applied++) {
      const range = this.#ranges[this.#applied];
      if (this.#taken[this.#applied] === 1) {
        add(this.#now, { ...range });
      } else {
        remove(this.#now, range);
      }
    }
    return this.#now;
  }
}

/** The first of the ranges that begins beyond `address`. */
function beyond(ranges: Range[], address: number): number {
  return countWhile(ranges.length, (row) => ranges[row].address <= address);
}

function add(ranges: Range[], range: Range): void {
  let at = beyond(ranges, range.address);
  if (ranges[at - 1]?.address === range.address) {
    at--; // contradicts the recording; the newer one holds
    ranges.splice(at, 1);
  }
  const before: Range | undefined = ranges[at - 1];
  if (range.expandable && before?.expandable === true && before.address + before.size === range.address) {
    range = { ...before, size: before.size + range.size };
    at--;
    ranges.splice(at, 1);
  }
  const after: Range | undefined = ranges[at];
  if (range.expandable && after?.expandable === true && range.address + range.size === after.address) {
    range.size += after.size;
    ranges.splice(at, 1);
  }
  ranges.splice(at, 0, range);
}

function remove(ranges: Range[], range: Range): void {
  const at = beyond(ranges, range.address) - 1;
  const holder: Range | undefined = ranges[at];
  if (holder === undefined) {
    return;
  }
  if (!range.expandable) {
    if (holder.address === range.address) {
      ranges.splice(at, 1);
    }
    return;
  }
  const end = range.address + range.size;
  const holderEnd = holder.address + holder.size;
  if (!holder.expandable || holderEnd < end) {
    return;
  }
  const rest: Range[] = [];
  if (holder.address < range.address) {
    rest.push({ ...holder, size: range.address - holder.address });
  }
  if (end < holderEnd) {
    rest.push({ ...holder, address: end, size: holderEnd - end });
  }
  ranges.splice(at, 1, ...rest);
}

/** Lays what is alive into the ranges. Both by address. */
export function fillRanges(ranges: readonly Range[], occupants: readonly Occupant[]): Segment[] {
  const stream = mainStream(ranges);
  let next = 0;
  return ranges.map((range) => {
    const end = range.address + range.size;
    while (next < occupants.length && occupants[next].address < range.address) {
      next++;
    }
    const first = next;
    while (next < occupants.length && occupants[next].address < end) {
      next++;
    }
    const free: BlockState =
      range.pool !== 0 ? "private" : range.stream !== stream ? "other stream" : first === next ? "cached" : "hole";
    const blocks: Block[] = [];
    let position = range.address;
    const leave = (to: number) => {
      if (to > position) {
        blocks.push({ address: position, size: to - position, allocation: -1, state: free });
      }
    };
    for (let i = first; i < next; i++) {
      const { address, size, allocation, pending } = occupants[i];
      leave(address);
      blocks.push({ address, size: Math.min(size, end - address), allocation, state: pending ? "pending" : "used" });
      position = Math.max(position, address + size);
    }
    leave(end);
    return { ...range, blocks };
  });
}

/** The stream with the most memory of the default pool: whose view of free memory is shown. */
function mainStream(ranges: readonly Range[]): number {
  const held = new Map<number, number>();
  for (const range of ranges) {
    if (range.pool === 0) {
      held.set(range.stream, (held.get(range.stream) ?? 0) + range.size);
    }
  }
  let main = 0;
  let most = -1;
  for (const [stream, bytes] of held) {
    if (bytes > most || (bytes === most && stream > main)) {
      [main, most] = [stream, bytes];
    }
  }
  return main;
}

const ACCOUNTS = {
  hole: "holes",
  cached: "cached",
  "other stream": "other_streams",
  private: "private_pools",
} as const;

/** Adds what is reserved and free to `waste`. */
export function addSegments(waste: Waste, segments: readonly Segment[]): void {
  for (const segment of segments) {
    waste.reserved += segment.size;
    for (const { size, state } of segment.blocks) {
      if (state === "used" || state === "pending") {
        continue; // counted whether or not they lie in a segment that is known
      }
      waste[ACCOUNTS[state]] += size;
      if (state === "hole" || state === "cached") {
        waste.largest_free = Math.max(waste.largest_free, size);
      }
    }
  }
}
