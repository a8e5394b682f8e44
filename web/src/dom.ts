// Elements, made safely: text only ever becomes a text node, whatever a recording says.

export type Child = Node | string | number | null | undefined | false;
export type Attributes = Record<string, string | number | boolean | null | undefined | ((event: Event) => void)>;

/** An element. `on…` attributes are listeners; `false`, `null` and `undefined` leave an attribute out, `true` sets it empty. */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  dress(element, attributes, children);
  return element;
}

/** The same for SVG. */
export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  dress(element, attributes, children);
  return element;
}

function dress(element: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...nodes(children));
}

/** Puts `children` in the place of what is in `host`. */
export function fill(host: Element, ...children: Child[]): void {
  host.replaceChildren(...nodes(children));
}

function nodes(children: Child[]): (Node | string)[] {
  const kept = children.filter((child) => child !== null && child !== undefined && child !== false);
  return kept.map((child) => (child instanceof Node ? child : String(child)));
}

/** A small square of a colour. It only repeats what a word beside it says. */
export function swatch(colour: string): HTMLElement {
  const square = el("span", { class: "swatch", "aria-hidden": "true" });
  square.style.background = colour;
  return square;
}

/** `draw`, at most once a frame however often it is asked for. */
export function eachFrame(draw: () => void): () => void {
  let asked = false;
  return () => {
    if (asked) {
      return;
    }
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/** One of a few, as radio buttons. */
export function choice<T extends string>(
  name: string,
  options: [T, string][],
  first: T,
  chosen: (value: T) => void,
): HTMLElement {
  const group = el("fieldset", { class: "choice" }, el("legend", { class: "visually-hidden" }, name));
  for (const [value, text] of options) {
    const input = el("input", { type: "radio", name, value, checked: value === first, onchange: () => chosen(value) });
    group.append(el("label", {}, input, text));
  }
  return group;
}
