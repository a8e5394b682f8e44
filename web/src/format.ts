// Numbers and times as the rest of oomph writes them (`crates/oomph-words`).

const UNITS: [number, string][] = [
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
];

/** Bytes as GiB, MiB or KiB, with three digits. */
export function bytes(value: number): string {
  for (const [unit, name] of UNITS) {
    if (value >= unit) {
      const number = value / unit;
      return `${fixed(number, number >= 100 ? 0 : number < 10 ? 2 : 1)} ${name}`;
    }
  }
  return `${value} B`;
}

/** Bytes that may be off by `error`. */
export function bytesWithin(value: number, error: number): string {
  return error > 0 ? `${bytes(value)} ± ${bytes(error)}` : bytes(value);
}

/** A change in bytes, with its sign. */
export function change(value: number): string {
  return value === 0 ? "0 B" : (value < 0 ? "−" : "+") + bytes(Math.abs(value));
}

/** A whole number with separators. */
export function grouped(value: number): string {
  return String(Math.trunc(value)).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A count with its noun. */
export function plural(count: number, noun: string): string {
  return count === 1 ? `1 ${noun}` : `${grouped(count)} ${noun}s`;
}

/** A share as a percentage; never 0 % for something, never 100 % for less than all. */
export function percent(part: number, whole: number): string {
  if (whole === 0 || part === 0) {
    return "0 %";
  }
  const share = (100 * part) / whole;
  if (share < 1) {
    return "<1 %";
  }
  return part < whole && share > 99 ? ">99 %" : `${fixed(share, 0)} %`;
}

/** The decimals of seconds that mean something if a time may be off by `error` seconds. */
function decimals(error: number): number {
  return error > 0 ? Math.max(0, Math.min(MICROS, Math.floor(-Math.log10(error)))) : MICROS;
}

/** Decimals of seconds that times are recorded with. */
const MICROS = 6;
const MILLIS = 3;

/** A time or a duration, with three digits, or fewer where it may be off by `error` seconds. */
export function seconds(value: number, error = 0): string {
  const size = Math.abs(value);
  const most = decimals(error);
  if (0 < size && size < 10 ** -most) {
    return `<${most < MILLIS ? `${(10 ** -most).toFixed(most)} s` : `${(10 ** (MILLIS - most)).toFixed(most - MILLIS)} ms`}`;
  }
  if (size >= 100) {
    return `${grouped(Math.round(value))} s`;
  }
  if (size >= 1 || most < MILLIS) {
    return `${value.toFixed(Math.min(size >= 10 ? 1 : 2, most))} s`;
  }
  if (size >= 1e-3 || most < MICROS) {
    const digits = size >= 0.1 ? 0 : size >= 0.01 ? 1 : 2;
    return `${(value * 1e3).toFixed(Math.min(digits, most - MILLIS))} ms`;
  }
  return `${Math.round(value * 1e6)} µs`;
}

/** An address, as people who debug write it. A page counts addresses from `base` on, since some are beyond what numbers hold. */
export function address(base: string, offset: number): string {
  return `0x${(BigInt(base) + BigInt(offset)).toString(16)}`;
}

/** Decimals as Rust rounds them: ties go to the even digit. Powers of two make ties common, and the page must agree with the terminal. */
export function fixed(value: number, digits: number): string {
  // A tie at this digit is an odd multiple of 1/2^(digits + 1), and that product is exact.
  const halves = value * 2 ** (digits + 1);
  if (!Number.isInteger(halves) || halves % 2 === 0) {
    return value.toFixed(digits);
  }
  const scale = 10 ** digits;
  const below = Math.floor(value * scale);
  return ((below + (below % 2)) / scale).toFixed(digits);
}

/** A time within a stretch of `span` seconds, with as many decimals as its parts need and `error` allows. */
export function timeWithin(value: number, span: number, error = 0): string {
  const wanted = span > 0 ? Math.max(0, Math.min(MICROS, 2 - Math.floor(Math.log10(span)))) : MILLIS;
  const digits = Math.min(wanted, decimals(error));
  return digits >= MILLIS && value < 1 ? `${(value * 1e3).toFixed(digits - MILLIS)} ms` : `${value.toFixed(digits)} s`;
}
