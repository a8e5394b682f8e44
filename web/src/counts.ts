// What the kernel counted of a process's RAM, over time. No DOM.

import { Varints } from "./data.ts";
import { countUpTo } from "./sorting.ts";

export class Counts {
  /** Microseconds after the recording's first event. */
  readonly micros: Float64Array;
  /** The process's own bytes, in RAM and swapped. */
  readonly own: Float64Array;
  /** Pages of files. */
  readonly files: Float64Array;

  constructor(bytes: Uint8Array, rows: number) {
    const reader = new Varints(bytes);
    [this.micros, this.own, this.files] = [0, 1, 2].map(() => new Float64Array(rows)) as [
      Float64Array,
      Float64Array,
      Float64Array,
    ];
    for (let row = 0, at = 0, own = 0, files = 0; row < rows; row++) {
      this.micros[row] = at += reader.unsigned();
      this.own[row] = own += reader.signed();
      this.files[row] = files += reader.signed();
    }
  }

  /** The most that was counted from one time to before another; where nothing was, what was counted nearest to it. */
  most(of: "own" | "files", from: number, to: number): number {
    const { micros, [of]: values } = this;
    const first = countUpTo(micros, from - 1);
    let row = first;
    let most = 0;
    for (; row < values.length && micros[row]! < to; row++) {
      most = Math.max(most, values[row]!);
    }
    if (row > first || values.length === 0) {
      return most;
    }
    const isNextNearer = first === 0 || micros[first]! - to < from - micros[first - 1]!;
    return values[isNextNearer && first < values.length ? first : first - 1]!;
  }
}
