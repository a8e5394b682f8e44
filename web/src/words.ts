// What is said of a GPU's memory, and what of RAM: they are counted differently.

import type { SubjectHead } from "./data.ts";

export interface Words {
  /** What the program holds. */
  held: string;
  /** What it has taken. */
  taken: string;
  heldPeak: string;
  takenPeak: string;
}

const GPU: Words = {
  held: "allocated",
  taken: "reserved",
  heldPeak: "at the allocated peak",
  takenPeak: "at the reserved peak",
};
const RAM: Words = {
  held: "asked for",
  taken: "counted by the kernel",
  heldPeak: "at the peak of what is asked for",
  takenPeak: "at the peak of what the kernel counts",
};

export function wordsOf({ ram }: SubjectHead): Words {
  return ram === null ? GPU : RAM;
}

/** The words that hold for all of them. */
export function wordsOfAll(heads: readonly SubjectHead[]): Words {
  const ram = heads.filter((head) => head.ram !== null).length;
  if (ram === 0 || ram === heads.length) {
    return ram === 0 ? GPU : RAM;
  }
  return {
    ...GPU,
    held: "allocated or asked for",
    taken: "reserved or counted by the kernel",
  };
}
