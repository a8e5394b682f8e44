// Light and dark: the system's choice, until the reader makes one. It is not stored: a page in a notebook's frame may not.

import { el } from "./dom.ts";

export type Theme = "light" | "dark";

export interface Themes {
  theme(): Theme;
  onTheme(listener: () => void): void;
  /** The button that changes it. */
  button: HTMLElement;
}

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

/** The value of a custom property of the style sheet, for canvases. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
