// What is in the page, as its writer has it: made from crates/oomph-report/src/page/data.rs by `make reference`.
// Change that, not this.

/** The page's JSON. */
export interface Page {
  /** Changes with what is in here. */
  schema: number;
  /** Of oomph. */
  version: string;
  /** What several recordings are to each other. */
  mode: Mode;
  /** In the order in which allocations number them. */
  kinds: Kind[];
  subjects: SubjectHead[];
  /** The subject that the page begins with. */
  worst: number;
  diff: DiffDevice[] | null;
}

/** The column `text`: numbers index `strings`, but for line numbers and flags. */
export interface Text {
  strings: string[];
  /** Name, file, line, flags. */
  frames: [number, number, number, number][];
  /** Label, file, line, function, flags, through, source; -1 is none. */
  lines: [number, number, number, number, number, number, number][];
}

/** What several recordings are to each other. */
export type Mode = "one" | "diff" | "ranks" | "together";

/** A kind of allocation. */
export interface Kind {
  key: string;
  name: string;
  colour: string;
}

/** One device of one recording, or the RAM of its process. */
export interface SubjectHead {
  title: string;
  /** What happened, in one sentence. */
  headline: string;
  file: string;
  /** The number of its recording. */
  recording: number;
  /** None of RAM. */
  device: number | null;
  format: string;
  conf: string | null;
  events: number;
  seconds: number | null;
  complete: boolean;
  /** How complete, in words. */
  completeness: string;
  limit: Limit | null;
  peak: Peak;
  /** Reserved bytes at the allocated peak, all accounted for. */
  waste: Waste;
  steps: Steps | null;
  ooms: Oom[];
  findings: Finding[];
  times: Times | null;
  /** The lowest address, in hexadecimal: all others count from it. */
  address_base: string;
  columns: Columns;
  what_if: WhatIf | null;
  /** Those that did the same and are not drawn. */
  alike: Alike | null;
  /** Where it is RAM. Then allocated is what was asked for, reserved what the kernel counted as the process's own, and there are no segments. */
  ram: Ram | null;
  /** The other memory of the same run. */
  beside: Beside | null;
}

/** What changed on a device, or in RAM. */
export interface DiffDevice {
  /** None of RAM. */
  ordinal: number | null;
  /** The subject before. */
  before: number | null;
  /** The subject after. */
  after: number | null;
  lines: DiffLine[];
  kinds: DiffKind[];
}

/** What a process could have: a line in the timeline. */
export interface Limit {
  /** Bytes of segments. */
  bytes: number;
  /** What it is, in words. */
  text: string;
}

/** The highest of each. */
export interface Peak {
  allocated: At;
  reserved: At;
  requested: At;
  /** Of the allocated peak. */
  step: number | null;
  /** Of the allocated peak. */
  place: string;
}

export interface Waste {
  /** Taken from the device. */
  reserved: number;
  /** In blocks that the program holds. */
  allocated: number;
  /** Asked for by the program in those blocks. */
  requested: number;
  /** Lost by rounding requests up. */
  rounding: number;
  /** Left with a block, because the rest was too small to be split off. */
  remainders: number;
  /** Freed by the program, held until another stream has passed. */
  pending: number;
  /** Free, in segments that other blocks keep from being given back. */
  holes: number;
  /** Free, in segments that are free as a whole. */
  cached: number;
  /** Free, but of another stream than the main one. */
  other_streams: number;
  /** Free, but of a private pool. */
  private_pools: number;
  /** The largest free piece that the main stream can use. */
  largest_free: number;
}

/** Where the steps are. */
export interface Steps {
  begins: number[];
  end: number;
  /** Whether the last was cut short. */
  partial: boolean;
  /** How many more were the same as one of these. */
  repeated: number;
  /** The allocated peak of each. */
  peaks: number[];
}

/** A request that was not served. */
export interface Oom {
  moment: number;
  size: number;
  fatal: boolean;
  text: string;
  place: string;
}

/** A finding, whose words are in the page. */
export interface Finding {
  code: string;
  severity: string;
  title: string;
  saving: number | null;
  /** The id of its words. */
  anchor: string;
}

/** How good the times are. */
export interface Times {
  /** Microseconds that times may be off by. */
  within: number;
}

/** The columns of a device. */
export interface Columns {
  born: Column;
  life: Column;
  shape: Column;
  address: Column;
  kind: Column;
  stack: Column;
  stream: Column;
  shapes: Column;
  addresses: Column;
  deferred: Column;
  segments: Column;
  nodes: Column;
  stacks: Column;
  annotations: Column;
  text: Column;
  /** Where the recording has times. */
  times?: Column;
}

/** What other settings would have done. */
export interface WhatIf {
  trials: Trial[];
  /** Whether the recording ends where the program died. */
  died: boolean;
  lower_bound: number;
  memory: string | null;
  verdict: string;
  paste: string | null;
  doubts: string[];
  /** The version of PyTorch that was replayed. */
  torch: string;
}

/** Ranks in whose place another is drawn. */
export interface Alike {
  /** How many. */
  count: number;
  /** Their files, in short. */
  names: string;
}

/** What is said of RAM only. */
export interface Ram {
  /** What was asked for at the peak may be off by so much: twice the standard deviation. */
  error: number;
  /** Bytes of small requests from one sample to the next, on average. */
  sampled_every: number;
  /** How memory is asked for, as the column `stream` numbers it. */
  hows: How[];
  /** What the kernel counted. */
  counted: Column;
}

/** The RAM beside a device's memory, or the device's beside RAM. */
export interface Beside {
  subject: number;
  /** Microseconds from the first event of all that belong together to the first one of this; none where the two were recorded at different times. */
  offset: number | null;
}

/** What changed at a line. */
export interface DiffLine {
  label: string;
  own: boolean;
  before: number;
  after: number;
}

/** What changed in a kind. */
export interface DiffKind {
  key: string;
  name: string;
  before: number;
  after: number;
}

/** A peak and when it was. */
export interface At {
  bytes: number;
  moment: number;
}

/** Where a column is. */
export interface Column {
  /** Of its `<script>`. */
  id: string;
  rows: number;
}

/** A setting that was tried. */
export interface Trial {
  conf: string;
  recorded: boolean;
  best: boolean;
  fit: Fit | null;
  peak_reserved: number;
  retries: number;
  /** The least memory that it completes in. */
  least: number | null;
  /** Reserved bytes over time. */
  samples: Column;
}

/** A way to ask for memory. */
export interface How {
  name: string;
  /** Whether a block stands for many. */
  sampled: boolean;
}

/** Whether a setting gets to the end of the recording. */
export type Fit = "yes" | "no" | "maybe";
