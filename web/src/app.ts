// What every view is given.

import type { Page } from "./data.ts";
import type { Memory } from "./memory.ts";
import type { Scale } from "./scale.ts";
import type { Store } from "./state.ts";
import type { Theme } from "./theme.ts";

export interface App {
  readonly page: Page;
  readonly store: Store;
  /** The subject that is shown. When the store reports another subject, this is that one already. */
  memory(): Memory;
  /** Where the moments of a subject are in the timeline's view: of the one that is shown, as it goes now, if nothing else is named. */
  scale(memory?: Memory, axis?: Scale["by"]): Scale;
  /** The position of the chosen moment. */
  position(): number;
  /** Any subject; the last few are remembered. */
  memoryOf(subject: number): Promise<Memory>;
  /** Shows another subject: at its peak, or, if both are drawn over the same time, at the same. The way to change `subject`: it is read first. */
  show(subject: number): Promise<void>;
  theme(): Theme;
  /** Calls `listener` when the theme changes; canvases must be drawn again. */
  onTheme(listener: () => void): void;
  /** Says a sentence to those who cannot see. */
  announce(text: string): void;
}

/** A view: puts its elements into `host`, a <section> that has its heading, and keeps them up to date. May hide its host. */
export type Mount = (host: HTMLElement, app: App) => void;
