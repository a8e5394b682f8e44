// Colours of source lines in the timeline. A line keeps its colour for as long as it is shown, however the view changes.

/** Told apart on light and on dark; none of them is the red of an out-of-memory. */
const COLOURS = [
  "#4e79a7",
  "#f28e2b",
  "#59a14f",
  "#b07aa1",
  "#76b7b2",
  "#d4a90f",
  "#8073c9",
  "#e38ba0",
  "#9c755f",
  "#3f8f9f",
  "#a0b84b",
];
const OTHERS = "#8c8c8c";

export class Palette {
  #taken = new Map<number, string>();

  /** The colours of these lines; -1 stands for all others. */
  colours(lines: readonly number[]): string[] {
    for (const line of [...this.#taken.keys()]) {
      if (!lines.includes(line)) {
        this.#taken.delete(line);
      }
    }
    return lines.map((line) => {
      if (line < 0) {
        return OTHERS;
      }
      const used = [...this.#taken.values()];
      const colour = this.#taken.get(line) ?? COLOURS.find((one) => !used.includes(one)) ?? OTHERS;
      this.#taken.set(line, colour);
      return colour;
    });
  }
}
