// The flame graph: which calls lead to what is held. The outermost call is on top, a box is as wide as its bytes.
//
// Draws a tree that it is given and reads nothing from the recording. The boxes are the items of an ARIA tree, so what is
// seen is what a screen reader reads. Calls too narrow to draw are one box; zooming into the call above shows them.

import { el, fill } from "./dom.ts";
import { bytesWithin, grouped, percent, plural } from "./format.ts";
import type { FlameNode, Frame } from "./memory.ts";
import type { Query } from "./search.ts";
import { queryOf } from "./search.ts";

/** How tall a row is, in pixels. */
const ROW = 20;
/** A call narrower than this many pixels is drawn together with its neighbours. */
const NARROWEST = 1;
/** A box narrower than this has no text. */
const READABLE = 28;
/** How many steps of the way back are named. */
const CRUMBS = 4;
const HINT = "Point at a call to see its bytes. A click or Enter zooms in, Escape goes back, the arrow keys move.";

export interface Flame {
  element: HTMLElement;
  /** Draws another tree; stays with the call that was chosen if it is there as well. */
  show(root: FlameNode, frames: readonly Frame[]): void;
  /** Marks the calls that match, and says how many bytes they lead to. */
  search(query: Query): number;
}

interface Box {
  node: FlameNode;
  /** How many calls are drawn as this one. */
  calls: number;
  bytes: number;
  count: number;
  error: number;
  depth: number;
  /** Shares of the width. */
  left: number;
  width: number;
  parent: Box | null;
  element: HTMLElement;
}

export function flame(): Flame {
  const canvas = el("div", { class: "flame-canvas", role: "tree", "aria-label": "Calls, outermost first" });
  const scroller = el("div", { class: "flame-scroller" }, canvas);
  const crumbs = el("nav", { class: "flame-crumbs", "aria-label": "Way back to all calls" });
  const details = el("p", { class: "flame-details" });
  const element = el("div", { class: "flame" }, crumbs, details, scroller);

  let root: FlameNode = { name: "", frame: -1, bytes: 0, count: 0, error: 0, children: [] };
  let frames: readonly Frame[] = [];
  /** The calls from the outermost to the one that was zoomed into. */
  let path: FlameNode[] = [];
  let query = queryOf("");
  let boxes: Box[] = [];
  /** The box that the Tab key comes to. */
  let current: Box | undefined;
  /** Pixels there are to draw into; 0: not known yet. */
  let width = 0;

  const chosen = (): FlameNode => path[path.length - 1] ?? root;

  const where = (node: FlameNode): string => placeOf(node, frames);

  /** The same without folders, for boxes. */
  function shortPlace(node: FlameNode): string {
    return where(node).replace(/^.*[/\\]/, "");
  }

  function describe(box: Box, place: string): string {
    const held = `${bytesWithin(box.bytes, box.error)}, ${percent(box.bytes, root.bytes)}, ${plural(box.count, "block")}`;
    if (box.calls > 1) {
      return `${grouped(box.calls)} more calls, too narrow to draw: ${held}`;
    }
    return place === "" ? `${box.node.name}: ${held}` : `${box.node.name} ${place}: ${held}`;
  }

  function showDetails(box: Box | undefined): void {
    details.textContent = box ? describe(box, where(box.node)) : HINT;
    details.classList.toggle("is-hint", !box);
  }

  /** Makes `box` the one that the Tab key comes to. */
  function settle(box: Box | undefined): void {
    current?.element.setAttribute("tabindex", "-1");
    current = box;
    box?.element.setAttribute("tabindex", "0");
  }

  function zoom(next: FlameNode[]): void {
    path = next;
    draw();
    showDetails(current);
    current?.element.focus();
  }

  function enter(box: Box): void {
    const target = box.calls > 1 ? box.parent : box;
    const nodes: FlameNode[] = [];
    for (let at = target; at !== null && at.node !== root; at = at.parent) {
      nodes.unshift(at.node);
    }
    zoom(nodes);
  }

  function layOut(): Box[] {
    const out: Box[] = [];
    const put = (nodes: FlameNode[], parent: Box | null, left: number, share: number): Box => {
      const sum = nodes.reduce((total, node) => total + node.bytes, 0);
      const count = nodes.reduce((total, node) => total + node.count, 0);
      const depth = parent === null ? 0 : parent.depth + 1;
      const box = {
        node: nodes[0]!,
        calls: nodes.length,
        bytes: sum,
        count,
        error: Math.hypot(...nodes.map(({ error }) => error)),
        depth,
        left,
        width: share,
        parent,
        element: el("div"),
      };
      out.push(box);
      return box;
    };
    let parent: Box | null = null;
    for (const node of [root, ...path]) {
      parent = put([node], parent, 0, 1);
    }
    // `out` is also the queue: what is below a box is laid out when its turn comes.
    for (let next = path.length; next < out.length; next++) {
      const above = out[next]!;
      if (above.calls > 1 || above.bytes <= 0) {
        continue;
      }
      const scale = above.width / above.bytes;
      // Largest first: from the first narrow one on, all are.
      const wide = above.node.children.filter((node) => node.bytes * scale * width >= NARROWEST);
      let left = above.left;
      for (const node of wide) {
        left += put([node], above, left, node.bytes * scale).width;
      }
      const narrow = above.node.children.slice(wide.length);
      const rest = narrow.reduce((total, node) => total + node.bytes, 0) * scale;
      if (rest * width >= NARROWEST) {
        put(narrow, above, left, rest);
      }
    }
    return out;
  }

  function style(box: Box): string {
    const names = ["flame-node"];
    const frame = frames[box.node.frame];
    if (box.calls > 1) {
      names.push("is-merged");
    } else if (frame === undefined) {
      names.push("is-root");
    } else if (frame.own) {
      names.push("is-own");
    } else if (frame.native) {
      names.push("is-native");
    }
    if (box.depth < path.length) {
      names.push("is-above");
    }
    if (!query.empty && box.calls === 1) {
      names.push(box.node !== root && matches(box.node, frames, query) ? "is-match" : "is-other");
    }
    return names.join(" ");
  }

  function draw(): void {
    boxes = layOut();
    let deepest = 0;
    boxes.forEach((box, index) => {
      deepest = Math.max(deepest, box.depth);
      const { element: node } = box;
      node.className = style(box);
      node.dataset.index = String(index);
      node.setAttribute("role", "treeitem");
      node.setAttribute("aria-level", String(box.depth + 1));
      node.setAttribute("aria-label", describe(box, shortPlace(box.node)));
      node.setAttribute("tabindex", "-1");
      node.style.left = `${box.left * 100}%`;
      node.style.width = `max(1px, calc(${box.width * 100}% - 1px))`;
      node.style.top = `${box.depth * ROW}px`;
      if (box.width * width >= READABLE) {
        fill(
          node,
          ...(box.calls > 1
            ? [`${grouped(box.calls)} more`]
            : [`${box.node.name} `, el("span", {}, shortPlace(box.node))]),
        );
      }
    });
    fill(canvas, ...boxes.map((box) => box.element));
    canvas.style.height = `${(deepest + 1) * ROW}px`;
    settle(boxes[path.length]);
    drawCrumbs();
  }

  function drawCrumbs(): void {
    crumbs.hidden = path.length === 0;
    const step = (name: string, to: FlameNode[]): (Node | string)[] => [
      el("button", { type: "button", class: "link", onclick: () => zoom(to) }, name),
      " › ",
    ];
    const first = Math.max(0, path.length - 1 - CRUMBS);
    fill(
      crumbs,
      ...step(root.name, []),
      first > 0 && "… › ",
      ...path.slice(first, -1).flatMap((node, at) => step(node.name, path.slice(0, first + at + 1))),
      el("strong", { "aria-current": "location" }, chosen().name),
    );
  }

  function boxOf(event: Event): Box | undefined {
    const node = event.target instanceof Element ? event.target.closest<HTMLElement>(".flame-node") : null;
    return node === null ? undefined : boxes[Number(node.dataset.index)];
  }

  function neighbour(box: Box, key: string): Box | undefined {
    const row = boxes.filter(({ depth }) => depth === box.depth);
    const at = row.indexOf(box);
    switch (key) {
      case "ArrowLeft":
        return row[at - 1];
      case "ArrowRight":
        return row[at + 1];
      case "ArrowUp":
        return box.parent ?? undefined;
      case "ArrowDown":
        return boxes.find(({ parent }) => parent === box);
      case "Home":
        return row[0];
      case "End":
        return row[row.length - 1];
      default:
        return undefined;
    }
  }

  canvas.addEventListener("pointerover", (event) => showDetails(boxOf(event)));
  canvas.addEventListener("pointerleave", () =>
    showDetails(document.activeElement === current?.element ? current : undefined),
  );
  canvas.addEventListener("focusin", (event) => {
    settle(boxOf(event));
    showDetails(current);
  });
  canvas.addEventListener("click", (event) => {
    const box = boxOf(event);
    if (box) {
      enter(box);
    }
  });
  element.addEventListener("keydown", (event) => {
    const box = boxOf(event);
    const next = box && neighbour(box, event.key);
    if (event.key === "Escape" && path.length > 0) {
      zoom(path.slice(0, -1));
    } else if (box && (event.key === "Enter" || event.key === " ")) {
      enter(box);
    } else if (next) {
      next.element.focus();
    } else {
      return;
    }
    event.preventDefault();
  });
  // How much is too narrow to draw depends on the width.
  new ResizeObserver(([entry]) => {
    const now = entry?.contentRect.width ?? 0;
    if (Math.abs(now - width) > 1) {
      width = now;
      draw();
    }
  }).observe(canvas);
  showDetails(undefined);

  return {
    element,
    show(tree, of) {
      const before = path;
      [root, frames, path] = [tree, of, []];
      for (const node of before) {
        const same = chosen().children.find((child) => child.name === node.name && child.frame === node.frame);
        if (same === undefined) {
          break;
        }
        path.push(same);
      }
      draw();
      showDetails(undefined);
    },
    search(wanted) {
      query = wanted;
      for (const box of boxes) {
        box.element.className = style(box);
      }
      return heldByCalls(root, frames, query);
    },
  };
}

function placeOf(node: FlameNode, frames: readonly Frame[]): string {
  const frame = frames[node.frame];
  return frame === undefined ? "" : frame.line > 0 ? `${frame.file}:${frame.line}` : frame.file;
}

function matches(node: FlameNode, frames: readonly Frame[], query: Query): boolean {
  return query.matches(`${node.name} ${placeOf(node, frames)}`.toLowerCase());
}

/** The bytes that calls lead to which match. A call below one that matches is counted with it. */
export function heldByCalls(root: FlameNode, frames: readonly Frame[], query: Query): number {
  let held = 0;
  const open = query.empty ? [] : [...root.children];
  for (let node = open.pop(); node !== undefined; node = open.pop()) {
    if (matches(node, frames, query)) {
      held += node.bytes;
    } else {
      open.push(...node.children);
    }
  }
  return held;
}
