// Writes columns as the page's writer does, from plain objects: for tests.

export const NEVER = 0xffffffff;

/** Adds LEB128 varints to a list of bytes. Takes BigInt where a number would not be exact. */
export class Writer {
  bytes = [];

  unsigned(value) {
    let rest = BigInt(value);
    do {
      const low = Number(rest & 0x7fn);
      rest >>= 7n;
      this.bytes.push(rest > 0n ? low | 0x80 : low);
    } while (rest > 0n);
    return this;
  }

  signed(value) {
    const exact = BigInt(value);
    return this.unsigned(exact >= 0n ? 2n * exact : -2n * exact - 1n);
  }

  done() {
    return Uint8Array.from(this.bytes);
  }
}

function column(rows, write) {
  const writer = new Writer();
  rows.forEach((row, i) => write(writer, row, rows[i - 1]));
  return writer.done();
}

/**
 * A page with one subject, and its columns.
 *
 * `allocations`: `{ born, freed, size, requested, rounded, address, kind, stack, stream, back }` in order of birth;
 * `segments`: `{ moment, taken, address, size, stream, pool, small, expandable, line }` in order;
 * `nodes`: `[parent, frame]`; `stacks`: `[node, line]`; `times`: `[event, microseconds]`;
 * `annotations`: `{ name, from, to }`, whose names are strings of `text`.
 */
export function subject({
  events,
  allocations = [],
  segments = [],
  kinds = ["parameter", "activation", "unknown"],
  nodes = [],
  stacks = [[-1, 0]],
  text = { strings: ["no stack"], frames: [], lines: [[0, -1, 0, -1, 0, -1, -1]] },
  times = null,
  within = 0,
  annotations = [],
  head = {},
}) {
  const blocks = allocations.map((block) => {
    const whole = { requested: block.size, kind: 0, stack: 0, stream: 0, address: 0, freed: NEVER, ...block };
    return { rounded: whole.size, ...whole };
  });
  const distinct = () => {
    const index = new Map();
    const of = (value) => {
      if (!index.has(value)) {
        index.set(value, index.size);
      }
      return index.get(value);
    };
    return { of, index };
  };
  const [shapes, addresses] = [distinct(), distinct()];
  const each = (write) => column(blocks, (writer, block) => writer.unsigned(write(block)));
  const late = blocks.map((block, i) => ({ i, freed: block.freed, back: block.back })).filter(({ back }) => back);
  const columns = {
    born: column(blocks, (writer, block, before) => writer.unsigned(block.born - (before?.born ?? 0))),
    life: each(({ born, freed }) => (freed === NEVER ? 0 : freed - born + 1)),
    shape: each(({ size, requested, rounded }) => shapes.of(`${size} ${size - requested} ${rounded - requested}`)),
    address: each(({ address }) => addresses.of(address)),
    kind: each(({ kind }) => kind),
    stack: each(({ stack }) => stack),
    stream: each(({ stream }) => stream),
    shapes: column([...shapes.index.keys()], (writer, shape) =>
      shape.split(" ").forEach((part) => writer.unsigned(Number(part))),
    ),
    addresses: column([...addresses.index.keys()], (writer, address, before) => writer.signed(address - (before ?? 0))),
    deferred: column(late, (writer, { i, freed, back }, before) =>
      writer.unsigned(i - (before?.i ?? 0)).unsigned(back - freed),
    ),
    segments: column(segments, (writer, change, before) => {
      const {
        moment,
        taken,
        address,
        size,
        stream = 0,
        pool = 0,
        small = false,
        expandable = false,
        line = -1,
      } = change;
      writer
        .unsigned(moment - (before?.moment ?? 0))
        .unsigned(taken ? 1 : 0)
        .signed(address - (before?.address ?? 0));
      writer.unsigned(size).unsigned(stream).unsigned(pool);
      writer.unsigned((small ? 1 : 0) | (expandable ? 2 : 0)).unsigned(line + 1);
    }),
    nodes: column(nodes, (writer, [parent, frame]) => writer.unsigned(parent + 1).unsigned(frame)),
    stacks: column(stacks, (writer, [node, line]) => writer.unsigned(node + 1).unsigned(line)),
    times: column(times ?? [], (writer, [event, time], before) =>
      writer.unsigned(event - (before?.[0] ?? 0)).unsigned(time - (before?.[1] ?? 0)),
    ),
    annotations: column(annotations, (writer, { name, from, to }, before) => {
      writer
        .unsigned(text.strings.indexOf(name))
        .signed(from - (before?.from ?? 0))
        .unsigned(to === null ? 0 : to - from + 1);
    }),
    text: new TextEncoder().encode(JSON.stringify(text)),
  };
  const rows = {
    deferred: late.length,
    segments: segments.length,
    nodes: nodes.length,
    stacks: stacks.length,
    times: times?.length ?? 0,
    annotations: annotations.length,
    text: 1,
    shapes: shapes.index.size,
    addresses: addresses.index.size,
  };
  const page = {
    schema: 1,
    version: "0",
    mode: "one",
    worst: 0,
    diff: null,
    kinds: kinds.map((key) => ({ key, name: key, colour: "#888888" })),
    subjects: [
      {
        events,
        steps: null,
        times: times === null ? null : { within },
        address_base: "0x0",
        ram: null,
        beside: null,
        columns: Object.fromEntries(
          Object.keys(columns).map((name) => [name, { id: name, rows: rows[name] ?? blocks.length }]),
        ),
        ...head,
      },
    ],
  };
  return { page, columns };
}
