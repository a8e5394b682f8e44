// Orders and choices of many rows, without comparing or growing: a million rows take a few milliseconds.

/** The indices of `keys`, largest key first; equal keys stay in their order. */
export function largestFirst(keys: Uint32Array): Uint32Array {
  let order: Uint32Array = new Uint32Array(keys.length);
  let next: Uint32Array = new Uint32Array(keys.length);
  let most = 0;
  for (let i = 0; i < keys.length; i++) {
    order[i] = i;
    most = Math.max(most, keys[i]);
  }
  const BITS = 11;
  const starts = new Uint32Array(1 << BITS);
  for (let shift = 0; shift < 32 && most >>> shift > 0; shift += BITS) {
    starts.fill(0);
    const digit = (row: number) => ((1 << BITS) - 1) & ~(keys[row] >>> shift);
    for (let i = 0; i < order.length; i++) {
      starts[digit(i)]++;
    }
    for (let i = 0, start = 0; i < starts.length; i++) {
      const count = starts[i];
      starts[i] = start;
      start += count;
    }
    for (let i = 0; i < order.length; i++) {
      const row = order[i];
      next[starts[digit(row)]++] = row;
    }
    [order, next] = [next, order];
  }
  return order;
}

/** Those of `rows` that are wanted, in their order. */
export function selected(rows: Uint32Array, wanted: (row: number) => boolean): Uint32Array {
  const kept = new Uint32Array(rows.length);
  let count = 0;
  for (let i = 0; i < rows.length; i++) {
    if (wanted(rows[i])) {
      kept[count++] = rows[i];
    }
  }
  return kept.slice(0, count);
}

/** How many of `length` rows a test holds for. It must hold for the first of them and then no more. */
export function countWhile(length: number, holds: (row: number) => boolean): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (holds(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** How many of the ascending `values` are at most `limit`. */
export function countUpTo(values: ArrayLike<number>, limit: number): number {
  return countWhile(values.length, (row) => values[row] <= limit);
}
