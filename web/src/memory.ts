// One subject's memory in typed arrays, and every question that a view asks about it. No DOM.
//
// A moment m is the state after the first m events. The questions are single passes over the columns: a recording of
// two million events answers within a frame or two.

import type { Annotation } from "./annotation.ts";
import { annotationAt, inOrder } from "./annotation.ts";
import { Counts } from "./counts.ts";
import type { ColumnName, Page, SubjectHead, Text, Waste } from "./data.ts";
import { COLUMNS, inflated, readUnsigned, Varints } from "./data.ts";
import type { Scale } from "./scale.ts";
import { eventScale } from "./scale.ts";
import type { Occupant, Segment } from "./segments.ts";
import { addSegments, fillRanges, SegmentLog } from "./segments.ts";
import { countUpTo, countWhile, largestFirst, selected } from "./sorting.ts";

export type { Waste } from "./data.ts";
export type { Block, BlockState, Segment } from "./segments.ts";

/** The end of an allocation that was never freed. */
export const NEVER = 0xffffffff;

/** How many lines a timeline shows apart; the others are one group. */
const TOP_LINES = 10;

/** A line of source, or what stands for one. */
export interface Line {
  label: string;
  file: string;
  line: number;
  function: string;
  /** The program's own code, rather than a library's. */
  own: boolean;
  /** Whether there is such a line; others are the backward pass, before the recording, no stack. */
  real: boolean;
  /** The library's line that the call came to; empty: none. */
  through: string;
  /** The text of the line; empty: not at hand. */
  source: string;
}

export interface Frame {
  name: string;
  file: string;
  line: number;
  own: boolean;
  native: boolean;
}

export interface Group {
  /** Index of the kind or line; -1: all other lines. */
  key: number;
  name: string;
  /** One for each column. */
  bytes: Float64Array;
}

/** A stretch of the recording in columns. A column is all moments from its start to the next one's. */
export interface Timeline {
  by: "kind" | "line";
  /** The first and the last position. */
  from: number;
  to: number;
  /** The first position of each column. */
  starts: Float64Array;
  /** The first and the last moment of each column. */
  firsts: Float64Array;
  lasts: Float64Array;
  /** The moment of each column at which allocated was most: what `groups` and `allocated` show. */
  tops: Float64Array;
  /** What `allocated` is made of: kinds in the page's order, or lines with the largest first. */
  groups: Group[];
  allocated: Float64Array;
  /** The most reserved in each column; of RAM, the most that the kernel counted as the process's own. */
  reserved: Float64Array;
  /** Of RAM, the most pages of files. */
  files: Float64Array | null;
}

export interface FlameNode {
  name: string;
  /** Index of the frame; -1: not a call (all, or what stands for a stack). */
  frame: number;
  bytes: number;
  count: number;
  /** By how much samples among them may be off. */
  error: number;
  /** Largest first. */
  children: FlameNode[];
}

export interface LineAt {
  line: number;
  bytes: number;
  count: number;
  /** By how much samples among them may be off. */
  error: number;
  /** The kind with the most of the bytes. */
  kind: number;
}

export interface KindAt {
  kind: number;
  bytes: number;
  count: number;
  /** By how much samples among them may be off. */
  error: number;
}

export class Memory {
  readonly page: Page;
  readonly head: SubjectHead;
  readonly count: number;
  readonly born: Uint32Array;
  readonly freed: Uint32Array;
  readonly size: Float64Array;
  /** Bytes beyond what was requested. */
  readonly slack: Float64Array;
  /** Those of them that are lost by rounding; the others were too few to be split off. */
  readonly rounding: Float64Array;
  readonly address: Float64Array;
  readonly kind: Uint8Array;
  readonly stack: Uint32Array;
  readonly line: Uint32Array;
  readonly stream: Uint32Array;
  readonly lines: Line[];
  readonly frames: Frame[];
  /** What the program named, in the order of their beginnings; of those that begin together, the longest first. */
  readonly annotations: readonly Annotation[];
  /** Allocated bytes at each moment. */
  readonly allocated: Float64Array;
  #segments: SegmentLog;
  /** Allocations whose block came back to its pool later than the program freed it, and when it did. */
  #deferred: { allocation: Uint32Array; back: Float64Array };
  #parent: Int32Array;
  #frame: Uint32Array;
  #innermost: Int32Array;
  #lineOfStack: Uint32Array;
  /** Of RAM, what the kernel counted. */
  readonly counts: Counts | null;
  /** By how much an allocation may be off, squared: nothing, unless it is a sample. */
  readonly variance: Float64Array | null;
  /** Events and when they were, in microseconds: the corners of a line. */
  #times: { events: Float64Array; micros: Float64Array };
  /** The rank of each allocation's size among all sizes. */
  #rank: Uint32Array;
  #lastSegments: { moment: number; segments: Segment[] } | null = null;
  #byBirth: Uint32Array | null = null;
  #bySize: Uint32Array | null = null;
  #byLifetime: Uint32Array | null = null;

  static async load(page: Page, subject: number): Promise<Memory> {
    const { columns } = page.subjects[subject];
    const read = await Promise.all(
      COLUMNS.map(async (name) => {
        const column = columns[name];
        return [name, column === undefined ? new Uint8Array() : await inflated(column)] as const;
      }),
    );
    const { ram } = page.subjects[subject];
    const counted = ram === null ? new Uint8Array() : await inflated(ram.counted);
    return new Memory(page, subject, Object.fromEntries(read) as Record<ColumnName, Uint8Array>, counted);
  }

  /** From the inflated columns; of RAM, with the one of what the kernel counted. */
  constructor(
    page: Page,
    subject: number,
    columns: Record<ColumnName, Uint8Array>,
    counted: Uint8Array = new Uint8Array(),
  ) {
    const head = page.subjects[subject];
    const rows = (name: ColumnName) => head.columns[name]?.rows ?? 0;
    this.page = page;
    this.head = head;
    this.count = rows("born");

    const { count } = this;
    const indices = (name: ColumnName) => readUnsigned(columns[name], new Uint32Array(count));

    this.born = indices("born");
    this.freed = indices("life");
    for (let i = 0, born = 0; i < count; i++) {
      born += this.born[i];
      this.born[i] = born;
      this.freed[i] = this.freed[i] === 0 ? NEVER : born + this.freed[i] - 1;
    }

    const shape = indices("shape");
    const [sizes, slacks, rounding] = [0, 1, 2].map(() => new Float64Array(rows("shapes")));
    const shapes = new Varints(columns.shapes);
    for (let i = 0; i < sizes.length; i++) {
      sizes[i] = shapes.unsigned();
      slacks[i] = shapes.unsigned();
      rounding[i] = shapes.unsigned();
    }
    this.size = looked(shape, sizes);
    this.#rank = new Uint32Array(looked(shape, ranks(sizes)));
    this.slack = looked(shape, slacks);
    this.rounding = looked(shape, rounding);
    const addresses = new Float64Array(rows("addresses"));
    const steps = new Varints(columns.addresses);
    for (let i = 0, address = 0; i < addresses.length; i++) {
      addresses[i] = address += steps.signed();
    }
    this.address = looked(indices("address"), addresses);
    this.kind = new Uint8Array(indices("kind"));
    this.stack = indices("stack");
    this.stream = indices("stream");
    const { ram } = head;
    this.counts = ram === null ? null : new Counts(counted, ram.counted.rows);
    // A sample stands for blocks of which it is one, and has that chance to be seen.
    this.variance =
      ram === null
        ? null
        : this.size.map((size, i) =>
            ram.hows[this.stream[i]]?.sampled ? size * Math.min(size, ram.sampled_every) : 0,
          );

    this.#parent = new Int32Array(rows("nodes"));
    this.#frame = new Uint32Array(rows("nodes"));
    const nodes = new Varints(columns.nodes);
    for (let i = 0; i < this.#parent.length; i++) {
      this.#parent[i] = nodes.unsigned() - 1;
      this.#frame[i] = nodes.unsigned();
    }
    this.#innermost = new Int32Array(rows("stacks"));
    this.#lineOfStack = new Uint32Array(rows("stacks"));
    const stacks = new Varints(columns.stacks);
    for (let i = 0; i < this.#innermost.length; i++) {
      this.#innermost[i] = stacks.unsigned() - 1;
      this.#lineOfStack[i] = stacks.unsigned();
    }
    this.line = new Uint32Array(count);
    for (let i = 0; i < count; i++) {
      this.line[i] = this.#lineOfStack[this.stack[i]];
    }

    this.#segments = new SegmentLog(columns.segments, rows("segments"));
    const deferred = new Varints(columns.deferred);
    const late = new Uint32Array(rows("deferred"));
    const back = new Float64Array(late.length);
    for (let i = 0, index = 0; i < late.length; i++) {
      index += deferred.unsigned();
      late[i] = index;
      back[i] = this.freed[index] + deferred.unsigned();
    }
    this.#deferred = { allocation: late, back };

    this.#times = { events: new Float64Array(rows("times")), micros: new Float64Array(rows("times")) };
    const times = new Varints(columns.times);
    for (let i = 0, event = 0, time = 0; i < this.#times.events.length; i++) {
      this.#times.events[i] = event += times.unsigned();
      this.#times.micros[i] = time += times.unsigned();
    }

    const text = JSON.parse(new TextDecoder().decode(columns.text)) as Text;
    const string = (index: number) => text.strings[index] ?? "";
    this.frames = text.frames.map(([name, file, line, flags]) => {
      return { name: string(name), file: string(file), line, own: (flags & 1) !== 0, native: (flags & 2) !== 0 };
    });
    this.lines = text.lines.map(([label, file, line, function_, flags, through, source]) => {
      return {
        label: string(label),
        file: string(file),
        line,
        function: string(function_),
        own: (flags & 1) !== 0,
        real: (flags & 2) !== 0,
        through: string(through),
        source: string(source),
      };
    });

    const named = new Varints(columns.annotations);
    const annotations: Annotation[] = [];
    for (let i = 0, from = 0; i < rows("annotations"); i++) {
      const name = string(named.unsigned());
      from += named.signed();
      const lasts = named.unsigned();
      annotations.push({ name, from, to: lasts === 0 ? null : from + lasts - 1 });
    }
    this.annotations = inOrder(annotations);

    this.allocated = new Float64Array(head.events + 1);
    for (let i = 0; i < this.count; i++) {
      const size = this.size[i];
      this.allocated[this.born[i]] += size;
      // Beyond the end for what is never freed, where a typed array takes no notice.
      this.allocated[this.freed[i]] -= size;
    }
    for (let moment = 1; moment <= head.events; moment++) {
      this.allocated[moment] += this.allocated[moment - 1];
    }
  }

  /** The positions from `from` to `to` in at most `columns` columns. */
  timeline(by: "kind" | "line", from: number, to: number, columns: number, scale: Scale = eventScale(this)): Timeline {
    const positions = to - from + 1;
    columns = Math.max(1, Math.min(columns, positions));
    // One more than there are: where the last one ends.
    const starts = new Float64Array(columns + 1);
    for (let column = 0; column <= columns; column++) {
      starts[column] = from + Math.floor((column * positions) / columns);
    }
    const firsts = starts.subarray(0, columns).map((start) => scale.at(start));
    const lasts = starts.subarray(1).map((end) => scale.at(end - 1));
    const tops = new Float64Array(columns);
    const allocated = new Float64Array(columns);
    for (let column = 0; column < columns; column++) {
      let top = firsts[column];
      let most = this.allocated[top];
      for (let moment = top + 1; moment <= lasts[column]; moment++) {
        if (this.allocated[moment] > most) {
          top = moment;
          most = this.allocated[moment];
        }
      }
      tops[column] = top;
      allocated[column] = most;
    }

    const { born, freed, size } = this;
    const [earliest, latest] = [firsts[0], lasts[columns - 1]];
    // Which column first shows the state at a moment of the view or a later one.
    const shownFrom = (moment: number): number => countWhile(columns, (column) => tops[column] < moment);
    const groups = by === "kind" ? this.#kindGroups() : this.#lineGroups(earliest, latest, allocated, tops);
    // Each allocation is added where it first shows and taken away where it no longer does; then summed from the left.
    const changes = new Float64Array(groups.keys.length * (columns + 1));
    const of = by === "kind" ? this.kind : this.line;
    const end = countUpTo(born, latest);
    for (let i = 0, first = 0; i < end; i++) {
      // Births only ever go on, and so does the column that shows them first.
      while (first < columns && tops[first] < born[i]) {
        first++;
      }
      // Most live and die between the states that are shown.
      if (first === columns || freed[i] <= tops[first]) {
        continue;
      }
      const row = groups.of[of[i]] * (columns + 1);
      changes[row + first] += size[i];
      changes[row + (freed[i] > latest ? columns : shownFrom(freed[i]))] -= size[i];
    }
    // Before a recording begins and after it ends, nothing is known.
    const unknown = (column: number) => starts[column + 1] <= scale.first || starts[column] > scale.last;
    const named = groups.keys.map((key, group) => {
      const bytes = changes.subarray(group * (columns + 1), group * (columns + 1) + columns);
      for (let column = 1; column < columns; column++) {
        bytes[column] += bytes[column - 1];
      }
      bytes.forEach((_, column) => {
        bytes[column] = unknown(column) ? 0 : bytes[column];
      });
      return { key, name: this.groupName(by, key), bytes };
    });
    const shown = named.filter(({ bytes }) => bytes.some((value) => value > 0));
    const known = (value: number, column: number) => (unknown(column) ? 0 : value);
    const counted = (what: "own" | "files") => this.#mostCounted(what, starts, scale).map(known);
    return {
      by,
      from,
      to,
      starts: starts.subarray(0, columns),
      firsts,
      lasts,
      tops,
      groups: shown,
      allocated: allocated.map(known),
      reserved: this.counts === null ? this.#mostReserved(firsts, lasts).map(known) : counted("own"),
      files: this.counts === null ? null : counted("files"),
    };
  }

  /** What people call a group of a timeline. */
  groupName(by: "kind" | "line", key: number): string {
    if (by === "kind") {
      return this.page.kinds[key]?.name ?? "unknown";
    }
    if (key < 0) {
      return "other lines";
    }
    const { label, through } = this.lines[key];
    return through === "" ? label : `${label} → ${through}`;
  }

  #kindGroups(): { keys: number[]; of: ArrayLike<number> } {
    const keys = this.page.kinds.map((_, kind) => kind);
    return { keys, of: keys };
  }

  /** The lines that hold the most in a view: on average, and when allocated is most there. */
  #lineGroups(
    from: number,
    to: number,
    allocated: Float64Array,
    tops: Float64Array,
  ): { keys: number[]; of: Uint32Array } {
    let most = 0;
    allocated.forEach((bytes, column) => {
      most = bytes > allocated[most] ? column : most;
    });
    const peak = tops[most];
    const weights = new Float64Array(this.lines.length);
    const end = countUpTo(this.born, to);
    for (let i = 0; i < end; i++) {
      const freed = this.freed[i];
      if (freed <= from) {
        continue;
      }
      const born = this.born[i];
      const share = (Math.min(freed, to + 1) - Math.max(born, from)) / (to - from + 1);
      weights[this.line[i]] += this.size[i] * (born <= peak && peak < freed ? share + 1 : share);
    }
    const keys = [...weights.keys()].filter((line) => weights[line] > 0);
    keys.sort((a, b) => weights[b] - weights[a] || a - b);
    // A group of all others that has one member is that member.
    const shown = keys.length <= TOP_LINES + 1 ? keys : [...keys.slice(0, TOP_LINES), -1];
    const of = new Uint32Array(this.lines.length).fill(Math.max(0, shown.length - 1));
    shown.forEach((line, group) => {
      if (line >= 0) {
        of[line] = group;
      }
    });
    return { keys: shown, of };
  }

  #mostReserved(firsts: Float64Array, lasts: Float64Array): Float64Array {
    const { moments, reserved } = this.#segments;
    let next = countUpTo(moments, firsts[0]);
    let held = next > 0 ? reserved[next - 1] : 0;
    return lasts.map((last, column) => {
      let most = held;
      for (; next < moments.length && moments[next] <= last; next++) {
        held = reserved[next];
        most = moments[next] === firsts[column] ? held : Math.max(most, held);
      }
      return most;
    });
  }

  #mostCounted(of: "own" | "files", starts: Float64Array, scale: Scale): Float64Array {
    const { counts } = this;
    const shift = this.head.beside?.offset ?? 0;
    // By events, a column ends where the next one's first event is.
    const micros = starts.map((start) =>
      scale.by === "time"
        ? start - shift
        : start > this.head.events
          ? Infinity
          : (this.timeOf(start) ?? 0) * 1e6 - shift,
    );
    return micros.subarray(1).map((end, column) => counts?.most(of, micros[column], end) ?? 0);
  }

  /** The allocations that are alive at `moment`, largest first. */
  aliveAt(moment: number): Uint32Array {
    return this.inRange(moment, moment);
  }

  /** The allocations that are alive at any moment from `from` to `to`, largest first. */
  inRange(from: number, to: number): Uint32Array {
    const { born, freed } = this;
    return selected(this.bySize(), (i) => born[i] <= to && from < freed[i]);
  }

  /** All allocations, largest first. */
  bySize(): Uint32Array {
    this.#bySize ??= largestFirst(this.#rank);
    return this.#bySize;
  }

  /** All allocations in order of birth. */
  byBirth(): Uint32Array {
    this.#byBirth ??= this.born.map((_, i) => i);
    return this.#byBirth;
  }

  /** All allocations, those that live longest first. */
  byLifetime(): Uint32Array {
    this.#byLifetime ??= largestFirst(this.born.map((born, i) => Math.min(this.freed[i], this.head.events + 1) - born));
    return this.#byLifetime;
  }

  /** Calls `visit` with each allocation that is alive at `moment`. */
  #eachAlive(moment: number, visit: (allocation: number) => void): void {
    const end = countUpTo(this.born, moment);
    for (let i = 0; i < end; i++) {
      if (moment < this.freed[i]) {
        visit(i);
      }
    }
  }

  /** What each line holds at `moment`, largest first. */
  linesAt(moment: number): LineAt[] {
    const kinds = this.page.kinds.length;
    const bytes = new Float64Array(this.lines.length * kinds);
    const counts = new Uint32Array(this.lines.length);
    const variances = new Float64Array(this.lines.length);
    this.#eachAlive(moment, (i) => {
      const line = this.line[i];
      bytes[line * kinds + this.kind[i]] += this.size[i];
      variances[line] += this.variance?.[i] ?? 0;
      counts[line]++;
    });
    const found: LineAt[] = [];
    counts.forEach((count, line) => {
      if (count === 0) {
        return;
      }
      const ofLine = bytes.subarray(line * kinds, (line + 1) * kinds);
      const sum = ofLine.reduce((total, value) => total + value, 0);
      if (sum === 0) {
        return; // address space that was never touched
      }
      const error = errorOf(variances[line]);
      found.push({ line, bytes: sum, count, error, kind: ofLine.indexOf(Math.max(...ofLine)) });
    });
    return found.sort((a, b) => b.bytes - a.bytes || a.line - b.line);
  }

  /** What each kind holds at `moment`, largest first. */
  kindsAt(moment: number): KindAt[] {
    const variances = new Float64Array(this.page.kinds.length);
    const found = this.page.kinds.map((_, kind) => ({ kind, bytes: 0, count: 0, error: 0 }));
    this.#eachAlive(moment, (i) => {
      const group = found[this.kind[i]];
      group.bytes += this.size[i];
      group.count++;
      variances[this.kind[i]] += this.variance?.[i] ?? 0;
    });
    found.forEach((group) => {
      group.error = errorOf(variances[group.kind]);
    });
    return found.filter(({ bytes }) => bytes > 0).sort((a, b) => b.bytes - a.bytes || a.kind - b.kind);
  }

  /** What is held at `moment` by calls, outermost first. Calls that are not shown are left out of the stacks. */
  flameAt(moment: number, show: "own" | "python" | "all"): FlameNode {
    const bytes = new Float64Array(this.#innermost.length);
    const counts = new Uint32Array(this.#innermost.length);
    const variances = new Float64Array(this.#innermost.length);
    this.#eachAlive(moment, (i) => {
      const stack = this.stack[i];
      bytes[stack] += this.size[i];
      variances[stack] += this.variance?.[i] ?? 0;
      counts[stack]++;
    });
    const shown = (frame: Frame) => show === "all" || (show === "own" ? frame.own : !frame.native);
    const root: FlameNode = { name: "all", frame: -1, bytes: 0, count: 0, error: 0, children: [] };
    const children = new Map<FlameNode, Map<string | number, FlameNode>>();
    const descend = (parent: FlameNode, key: string | number, name: string, frame: number): FlameNode => {
      let known = children.get(parent);
      if (known === undefined) {
        known = new Map();
        children.set(parent, known);
      }
      let child = known.get(key);
      if (child === undefined) {
        child = { name, frame, bytes: 0, count: 0, error: 0, children: [] };
        known.set(key, child);
        parent.children.push(child);
      }
      return child;
    };
    counts.forEach((count, stack) => {
      if (count === 0) {
        return;
      }
      const path: number[] = [];
      for (let node = this.#innermost[stack]; node >= 0; node = this.#parent[node]) {
        const frame = this.#frame[node];
        if (shown(this.frames[frame])) {
          path.push(frame);
        }
      }
      let at = root;
      const grow = () => {
        at.bytes += bytes[stack];
        at.count += count;
        // Errors of different blocks add up as squares.
        at.error = Math.hypot(at.error, errorOf(variances[stack]));
      };
      grow();
      if (path.length === 0) {
        const { label } = this.lines[this.#lineOfStack[stack]];
        at = descend(at, label, label, -1);
        grow();
      }
      for (const frame of path.reverse()) {
        at = descend(at, frame, this.frames[frame].name, frame);
        grow();
      }
    });
    for (const node of children.keys()) {
      node.children.sort((a, b) => b.bytes - a.bytes);
    }
    return root;
  }

  /** The calls that led to an allocation, innermost first. */
  stackOf(allocation: number): Frame[] {
    const frames: Frame[] = [];
    for (let node = this.#innermost[this.stack[allocation]]; node >= 0; node = this.#parent[node]) {
      frames.push(this.frames[this.#frame[node]]);
    }
    return frames;
  }

  /** Allocations that the program has freed, but that are not back in their pool at `moment`. */
  #pendingAt(moment: number): number[] {
    const { allocation, back } = this.#deferred;
    const pending: number[] = [];
    for (let i = 0; i < allocation.length; i++) {
      if (this.freed[allocation[i]] <= moment && moment < back[i]) {
        pending.push(allocation[i]);
      }
    }
    return pending;
  }

  /** What is taken from the device at `moment` and what lies in it, by address. */
  segmentsAt(moment: number): Segment[] {
    // Several views ask about the moment that was chosen.
    if (this.#lastSegments?.moment !== moment) {
      this.#lastSegments = { moment, segments: this.#fillSegments(moment) };
    }
    return this.#lastSegments.segments;
  }

  #fillSegments(moment: number): Segment[] {
    const occupants: Occupant[] = [];
    const occupy = (allocation: number, pending: boolean) => {
      occupants.push({ address: this.address[allocation], size: this.size[allocation], allocation, pending });
    };
    this.#eachAlive(moment, (i) => occupy(i, false));
    this.#pendingAt(moment).forEach((i) => occupy(i, true));
    occupants.sort((a, b) => a.address - b.address || a.size - b.size);
    return fillRanges(this.#segments.after(countUpTo(this.#segments.moments, moment)), occupants);
  }

  /** Where all reserved bytes are at `moment`. */
  wasteAt(moment: number): Waste {
    const waste: Waste = {
      reserved: 0,
      allocated: 0,
      requested: 0,
      rounding: 0,
      remainders: 0,
      pending: 0,
      holes: 0,
      cached: 0,
      other_streams: 0,
      private_pools: 0,
      largest_free: 0,
    };
    this.#eachAlive(moment, (i) => {
      waste.allocated += this.size[i];
      waste.requested += this.size[i] - this.slack[i];
      waste.rounding += this.rounding[i];
      waste.remainders += this.slack[i] - this.rounding[i];
    });
    for (const i of this.#pendingAt(moment)) {
      waste.pending += this.size[i];
    }
    addSegments(waste, this.segmentsAt(moment));
    return waste;
  }

  allocatedAt(moment: number): number {
    return this.allocated[Math.max(0, Math.min(moment, this.head.events))];
  }

  /** What is asked for at `moment` may be off by so much. */
  errorAt(moment: number): number {
    let variance = 0;
    if (this.variance !== null) {
      this.#eachAlive(moment, (i) => {
        variance += this.variance?.[i] ?? 0;
      });
    }
    return errorOf(variance);
  }

  /** What the kernel counted until the next event: the process's own, and pages of files. */
  #countedAt(of: "own" | "files", moment: number): number {
    const shift = this.head.beside?.offset ?? 0;
    const micros = (at: number) => (at > this.head.events ? Infinity : (this.timeOf(at) ?? 0) * 1e6 - shift);
    return this.counts?.most(of, micros(moment), micros(moment + 1)) ?? 0;
  }

  /** Of RAM, pages of files. */
  filesAt(moment: number): number {
    return this.#countedAt("files", moment);
  }

  reservedAt(moment: number): number {
    if (this.counts !== null) {
      return this.#countedAt("own", moment);
    }
    const changes = countUpTo(this.#segments.moments, moment);
    return changes > 0 ? this.#segments.reserved[changes - 1] : 0;
  }

  /** Seconds from the first event, of what is drawn together, to the event that made `moment`; off by `timeError` at most. */
  timeOf(moment: number): number | null {
    const { events, micros } = this.#times;
    if (this.head.times === null || events.length === 0) {
      return null;
    }
    const event = Math.max(0, Math.min(moment, this.head.events) - 1);
    const corner = Math.max(0, countUpTo(events, event) - 1);
    const next = Math.min(corner + 1, events.length - 1);
    const run = events[next] - events[corner];
    const passed = run > 0 ? Math.min(1, (event - events[corner]) / run) : 0;
    const shift = this.head.beside?.offset ?? 0;
    return (shift + micros[corner] + passed * (micros[next] - micros[corner])) / 1e6;
  }

  /** The seconds that a time may be off by. */
  get timeError(): number {
    return (this.head.times?.within ?? 0) / 1e6;
  }

  /** The innermost annotation that `moment` lies in, or a mark at that moment. */
  annotationAt(moment: number): Annotation | null {
    return annotationAt(this.annotations, moment);
  }

  /** The step that `moment` is in, from 1. */
  stepOf(moment: number): number | null {
    const { steps } = this.head;
    if (steps === null || moment > steps.end) {
      return null;
    }
    // A step's first event makes the moment after its beginning.
    const step = countUpTo(steps.begins, moment - 1);
    return step === 0 ? null : step;
  }
}

/** Twice the standard deviation. */
function errorOf(variance: number): number {
  return Math.floor(2 * Math.sqrt(variance));
}

/** What indices stand for. */
function looked(indices: Uint32Array, values: ArrayLike<number>): Float64Array {
  const found = new Float64Array(indices.length);
  for (let i = 0; i < found.length; i++) {
    found[i] = values[indices[i]];
  }
  return found;
}

/** Each value's place among all, from 0. */
function ranks(values: Float64Array): Uint32Array {
  const order = [...values.keys()].sort((a, b) => values[a] - values[b]);
  const found = new Uint32Array(values.length);
  for (let i = 1; i < order.length; i++) {
    const [before, index] = [order[i - 1], order[i]];
    found[index] = found[before] + (values[index] === values[before] ? 0 : 1);
  }
  return found;
}
