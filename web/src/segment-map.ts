// Segments drawn to scale on a canvas: what lies where, and what is free for which reason.
//
// Segments flow like words in a text: to the same scale, several on a line, a long one over several lines. Knows about segments, blocks
// and pixels; what a block is called is the business of whoever shows it.

import { el, fill } from "./dom.ts";
import type { Block, BlockState, Segment } from "./memory.ts";
import { countWhile } from "./sorting.ts";
import { colour } from "./theme.ts";

/** How tall a line is, and how far the next is from it, in pixels. */
const LINE = 20;
const BELOW = 5;
/** Pixels between segments. */
const GAP = 3;
/** Blocks at least this wide have a pixel between them. */
const APART = 4;
/** Blocks at least this wide have text. */
const READABLE = 52;

const FONT = "11px system-ui, sans-serif";
/** How much coarser a scale may be so that no segment is broken over lines. */
const COARSER = 5;

type Fill = string | CanvasPattern;

export type FreeState = Exclude<BlockState, "used">;

/** Where a block is: indices into the segments and their blocks. */
export interface Spot {
  segment: number;
  block: number;
}

export interface Paint {
  colour(block: Block): string;
  text(block: Block): string;
}

export interface SegmentMap {
  element: HTMLElement;
  /** Draws segments into lines `width` pixels wide, with `scale` bytes for each pixel, and puts a frame around `marked`. */
  show(segments: readonly Segment[], scale: number, width: number, paint: Paint, marked: Spot | null): void;
}

/** A part of a segment that is on one line. */
interface Piece {
  segment: number;
  line: number;
  x: number;
  width: number;
  /** Bytes of the segment before it. */
  offset: number;
}

/** Lays segments out in lines `width` wide. */
export function flow(
  segments: readonly { size: number }[],
  scale: number,
  width: number,
): { pieces: Piece[]; lines: number } {
  if (!(width >= 1 && scale > 0)) {
    throw new RangeError(`lines of ${width} pixels with ${scale} bytes each hold nothing`);
  }
  const pieces: Piece[] = [];
  let line = 0;
  let x = 0;
  segments.forEach(({ size }, segment) => {
    let left = Math.max(1, size / scale);
    if (x > 0 && left > width - x) {
      line++;
      x = 0;
    }
    for (let offset = 0; left > 0; ) {
      const part = Math.min(left, width - x);
      pieces.push({ segment, line, x, width: part, offset });
      left -= part;
      offset += part * scale;
      x += part;
      if (left > 0) {
        line++;
        x = 0;
      }
    }
    x += GAP;
  });
  return { pieces, lines: pieces.length === 0 ? 0 : line + 1 };
}

/**
 * A scale, in bytes for each pixel, at which the segments take at most `lines` lines, as fine as that allows. Somewhat coarser if then no
 * segment takes more than one.
 */
export function scaleFor(segments: readonly { size: number }[], width: number, lines: number): number {
  const finest = finestScale(segments, width, lines);
  const unbroken = segments.reduce((most, { size }) => Math.max(most, size), 0) / width;
  return unbroken <= COARSER * finest ? Math.max(finest, unbroken) : finest;
}

function finestScale(segments: readonly { size: number }[], width: number, lines: number): number {
  const total = segments.reduce((sum, { size }) => sum + size, 0);
  let fine = Math.max(1, total / (width * lines));
  let coarse = fine;
  while (coarse < total && flow(segments, coarse, width).lines > lines) {
    coarse *= 2;
  }
  for (let round = 0; round < 12; round++) {
    const middle = (fine + coarse) / 2;
    if (flow(segments, middle, width).lines > lines) {
      fine = middle;
    } else {
      coarse = middle;
    }
  }
  return coarse;
}

/** Colours and hatchings, so that reasons differ by more than colour. */
const HATCHINGS: Record<FreeState, { property: string; strokes: (pen: CanvasRenderingContext2D) => void }> = {
  hole: { property: "--free-hole", strokes: (pen) => slanted(pen, 1) },
  cached: { property: "--free-cached", strokes: () => undefined },
  pending: { property: "--free-pending", strokes: (pen) => upright(pen) },
  "other stream": { property: "--free-stream", strokes: (pen) => slanted(pen, -1) },
  private: { property: "--free-private", strokes: (pen) => level(pen) },
};
const TILE = 6;

function slanted(pen: CanvasRenderingContext2D, direction: 1 | -1): void {
  for (const shift of [-TILE, 0, TILE]) {
    const [from, to] = direction > 0 ? [TILE, 0] : [0, TILE];
    pen.moveTo(shift - 1, from + (direction > 0 ? 1 : -1));
    pen.lineTo(shift + TILE + 1, to + (direction > 0 ? -1 : 1));
  }
}

function upright(pen: CanvasRenderingContext2D): void {
  pen.moveTo(TILE / 2, 0);
  pen.lineTo(TILE / 2, TILE);
}

function level(pen: CanvasRenderingContext2D): void {
  pen.moveTo(0, TILE / 2);
  pen.lineTo(TILE, TILE / 2);
}

/** Hatchings that were made, by their colours: a theme's are made once. */
const made = new Map<string, Fill>();

function hatching(state: FreeState): Fill {
  const { property } = HATCHINGS[state];
  const key = `${state} ${colour(property)}`;
  const pattern = made.get(key) ?? makeHatching(state);
  made.set(key, pattern);
  return pattern;
}

function makeHatching(state: FreeState): Fill {
  const { property, strokes } = HATCHINGS[state];
  const tile = el("canvas", { width: TILE, height: TILE });
  const pen = tile.getContext("2d");
  if (pen === null) {
    return colour(property);
  }
  pen.fillStyle = colour(property);
  pen.fillRect(0, 0, TILE, TILE);
  pen.strokeStyle = colour(`${property}-line`);
  pen.lineWidth = 1.2;
  pen.beginPath();
  strokes(pen);
  pen.stroke();
  return pen.createPattern(tile, "repeat") ?? colour(property);
}

/** A small picture of how a state looks. It only repeats what a word beside it says. */
export function hatchedSwatch(state: FreeState): HTMLElement {
  const canvas = el("canvas", { class: "swatch", width: 2 * TILE, height: 2 * TILE, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  if (pen !== null) {
    pen.fillStyle = hatching(state);
    pen.fillRect(0, 0, 2 * TILE, 2 * TILE);
  }
  return canvas;
}

/** A map; `onSpot` is called with what the pointer or the keyboard comes to, and with null when it leaves. */
export function segmentMap(label: string, onSpot: (spot: Spot | null, byKeyboard: boolean) => void): SegmentMap {
  const canvas = el("canvas");
  const cursor = el("div", { class: "map-cursor" });
  const marks = el("div", { class: "map-marks" });
  const element = el(
    "div",
    {
      class: "map",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "map of segments",
      "aria-label": label,
    },
    canvas,
    marks,
    cursor,
  );
  let segments: readonly Segment[] = [];
  let scale = 1;
  let pieces: Piece[] = [];
  let at: Spot | null = null;
  let drawn = { width: 1, height: 1 };

  /** Frames around all parts of a block. */
  function frames(spot: Spot, name: string): HTMLElement[] {
    const segment = segments[spot.segment];
    const block = segment?.blocks[spot.block];
    if (segment === undefined || block === undefined) {
      return [];
    }
    const from = block.address - segment.address;
    const to = from + block.size;
    return pieces
      .filter((piece) => piece.segment === spot.segment)
      .flatMap((piece) => {
        const left = Math.max(0, (from - piece.offset) / scale);
        const right = Math.min(piece.width, (to - piece.offset) / scale);
        if (right <= left) {
          return [];
        }
        const frame = el("div", { class: name });
        // In shares: paper may be wider than what it was drawn for.
        frame.style.left = share(piece.x + left, drawn.width);
        frame.style.width = share(Math.max(2, right - left), drawn.width);
        frame.style.top = share(piece.line * (LINE + BELOW), drawn.height);
        frame.style.height = share(LINE, drawn.height);
        return [frame];
      });
  }

  function go(spot: Spot | null, byKeyboard: boolean): void {
    if (spot?.segment === at?.segment && spot?.block === at?.block) {
      return;
    }
    at = spot;
    fill(cursor, ...(spot ? frames(spot, "map-frame") : []));
    onSpot(spot, byKeyboard);
  }

  function hit(event: PointerEvent): Spot | null {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const line = Math.floor((event.clientY - box.top) / (LINE + BELOW));
    const piece = pieces.find((part) => part.line === line && part.x <= x && x <= part.x + part.width);
    const segment = piece && segments[piece.segment];
    if (piece === undefined || segment === undefined) {
      return null;
    }
    const address = segment.address + piece.offset + (x - piece.x) * scale;
    const block = segment.blocks.findIndex((part) => address < part.address + part.size);
    return { segment: piece.segment, block: block < 0 ? segment.blocks.length - 1 : block };
  }

  function moved(spot: Spot, key: string): Spot | null {
    const blocks = segments[spot.segment]?.blocks.length ?? 0;
    switch (key) {
      case "ArrowRight":
        return spot.block + 1 < blocks ? { ...spot, block: spot.block + 1 } : next(spot.segment + 1, 0);
      case "ArrowLeft":
        return spot.block > 0 ? { ...spot, block: spot.block - 1 } : next(spot.segment - 1, Infinity);
      case "ArrowDown":
        return next(spot.segment + 1, 0);
      case "ArrowUp":
        return next(spot.segment - 1, 0);
      case "Home":
        return next(0, 0);
      case "End":
        return next(segments.length - 1, Infinity);
      default:
        return null;
    }
  }

  function next(segment: number, block: number): Spot | null {
    const found = segments[segment];
    return found === undefined ? null : { segment, block: Math.min(block, found.blocks.length - 1) };
  }

  element.addEventListener("pointermove", (event) => go(hit(event), false));
  element.addEventListener("pointerleave", () => go(null, false));
  element.addEventListener("focus", () => go(at ?? next(0, 0), true));
  element.addEventListener("blur", () => go(null, false));
  element.addEventListener("keydown", (event) => {
    const spot = moved(at ?? { segment: 0, block: 0 }, event.key);
    if (spot !== null) {
      event.preventDefault();
      go(spot, true);
      cursor.firstElementChild?.scrollIntoView({ block: "nearest" });
    }
  });

  function draw(lines: number, width: number, paint: Paint): void {
    const height = Math.max(0, lines * (LINE + BELOW) - BELOW);
    const sharpness = window.devicePixelRatio || 1;
    drawn = { width, height };
    const size = [Math.round(width * sharpness), Math.round(height * sharpness)] as const;
    if (canvas.width !== size[0] || canvas.height !== size[1]) {
      [canvas.width, canvas.height] = size;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    if (pen === null) {
      return;
    }
    pen.setTransform(sharpness, 0, 0, sharpness, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = FONT;
    pen.textBaseline = "middle";
    const free = {
      hole: hatching("hole"),
      cached: hatching("cached"),
      pending: hatching("pending"),
      "other stream": hatching("other stream"),
      private: hatching("private"),
    };
    const ink = colour("--map-text");
    const inkOnKind = colour("--map-text-on-kind");
    // What is wide, then over it what is narrow: what keeps a segment may be a block that is narrower than a pixel.
    const wideOnes = new Rectangles();
    const narrowOnes = new Rectangles();
    const texts: (() => void)[] = [];
    let piece = 0;
    segments.forEach((segment, index) => {
      for (; pieces[piece]?.segment === index; piece++) {
        const { line, x, width: wide, offset } = pieces[piece]!;
        const top = line * (LINE + BELOW);
        const last = offset + wide * scale;
        const narrow = new PixelRow();
        for (let at = firstBeyond(segment.blocks, segment.address + offset); at < segment.blocks.length; at++) {
          const block = segment.blocks[at]!;
          const from = block.address - segment.address;
          if (from >= last) {
            break;
          }
          const left = Math.max(0, (from - offset) / scale);
          const right = Math.min(wide, (from + block.size - offset) / scale);
          const fill = block.state === "used" ? paint.colour(block) : free[block.state];
          if (right - left < 1) {
            narrow.add(left, right - left, fill);
            continue;
          }
          wideOnes.add(fill, x + left, top, right - left - (right < wide && right - left >= APART ? 1 : 0));
          if (right - left >= READABLE && from >= offset) {
            texts.push(() =>
              write(pen, paint.text(block), x + left, top, right - left, block.state === "used" ? inkOnKind : ink),
            );
          }
        }
        for (const run of narrow.runs()) {
          narrowOnes.add(run.fill, x + run.from, top, Math.min(run.to, wide) - run.from);
        }
      }
    });
    wideOnes.draw(pen);
    narrowOnes.draw(pen);
    texts.forEach((drawText) => drawText());
  }

  return {
    element,
    show(shown, bytesPerPixel, width, paint, marked) {
      segments = shown;
      scale = bytesPerPixel;
      const laid = flow(segments, scale, width);
      pieces = laid.pieces;
      draw(laid.lines, width, paint);
      fill(marks, ...(marked ? frames(marked, "map-mark") : []));
      at = null;
      fill(cursor);
    },
  };
}

/** Rectangles of a line's height by what fills them: a pen that changes its fill a hundred thousand times is slow. */
class Rectangles {
  #byFill = new Map<Fill, number[]>();

  add(fill: Fill, x: number, y: number, width: number): void {
    const places = this.#byFill.get(fill);
    if (places === undefined) {
      this.#byFill.set(fill, [x, y, width]);
    } else {
      places.push(x, y, width);
    }
  }

  draw(pen: CanvasRenderingContext2D): void {
    for (const [fill, places] of this.#byFill) {
      pen.fillStyle = fill;
      for (let i = 0; i < places.length; i += 3) {
        pen.fillRect(places[i]!, places[i + 1]!, places[i + 2]!, LINE);
      }
    }
  }
}

function share(part: number, whole: number): string {
  return `${(100 * part) / whole}%`;
}

/** Blocks narrower than a pixel: of those in one pixel, the fill with the most of it is seen. A hundred thousand of them cost no more than a line of pixels. */
class PixelRow {
  #runs: { from: number; to: number; fill: Fill }[] = [];
  #pixel = -1;
  #shares = new Map<Fill, number>();

  /** From left to right. */
  add(left: number, width: number, fill: Fill): void {
    const pixel = Math.floor(left);
    if (pixel !== this.#pixel) {
      this.#close();
      this.#pixel = pixel;
    }
    this.#shares.set(fill, (this.#shares.get(fill) ?? 0) + width);
  }

  runs(): readonly { from: number; to: number; fill: Fill }[] {
    this.#close();
    return this.#runs;
  }

  #close(): void {
    let most: [Fill, number] | null = null;
    for (const entry of this.#shares) {
      most = most !== null && most[1] >= entry[1] ? most : entry;
    }
    this.#shares.clear();
    if (most === null) {
      return;
    }
    const last = this.#runs[this.#runs.length - 1];
    if (last !== undefined && last.to === this.#pixel && last.fill === most[0]) {
      last.to++;
    } else {
      this.#runs.push({ from: this.#pixel, to: this.#pixel + 1, fill: most[0] });
    }
  }
}

/** The first block that ends beyond an address. */
function firstBeyond(blocks: readonly Block[], address: number): number {
  return countWhile(blocks.length, (row) => blocks[row]!.address + blocks[row]!.size <= address);
}

function write(pen: CanvasRenderingContext2D, text: string, x: number, y: number, width: number, ink: string): void {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width - 4, LINE);
  pen.clip();
  pen.fillStyle = ink;
  pen.fillText(text, x + 4, y + LINE / 2 + 0.5);
  pen.restore();
}
