// Light and dark: the system's choice, until the reader makes one. It is not stored: a page in a notebook's frame may not.

import { el } from "./dom.ts";

export type Theme = "light" | "dark";

export interface Themes {
  theme(): Theme;
  onTheme(listener: () => void): void;
  /** The button that changes it. */
  button: HTMLElement;
}

const resolved = new Map<string, string>();
let probe: HTMLElement | null = null;

export function createThemes(): Themes {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const listeners: (() => void)[] = [];
  let chosen: Theme | null = null;
  const theme = (): Theme => chosen ?? (system.matches ? "dark" : "light");
  const button = el("button", { type: "button", class: "quiet theme-toggle" });
  const apply = () => {
    const other: Theme = theme() === "dark" ? "light" : "dark";
    root.dataset.theme = theme();
    resolved.clear();
    button.textContent = other === "dark" ? "Dark" : "Light";
    button.setAttribute("aria-label", `Change to the ${other} theme`);
    listeners.forEach((listener) => listener());
  };
  button.addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    apply();
  });
  system.addEventListener("change", apply);
  // Paper is white. The theme on the screen comes back afterwards.
  let onScreen: Theme | null = null;
  addEventListener("beforeprint", () => {
    onScreen = chosen;
    chosen = "light";
    apply();
  });
  addEventListener("afterprint", () => {
    chosen = onScreen;
    apply();
  });
  apply();
  return { theme, onTheme: (listener) => listeners.push(listener), button };
}

/** What a custom property of the style sheet means now, for canvases: `light-dark()` is resolved by asking an element. */
export function colour(name: string): string {
  const found = resolved.get(name);
  if (found !== undefined) {
    return found;
  }
  probe ??= document.body.appendChild(el("span", { hidden: true }));
  probe.style.color = `var(${name})`;
  const value = getComputedStyle(probe).color;
  resolved.set(name, value);
  return value;
}
