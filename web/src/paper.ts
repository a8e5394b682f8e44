// Printing: charts are drawn for paper, then for the screen again.

/**
 * How wide charts are drawn for paper, in pixels: what A4 has between margins of a centimetre. How wide the paper is remains unknown until it is
 * printed; the style sheet stretches pictures to what there is.
 */
const PAPER = 718;

let printing = false;
if (typeof addEventListener === "function") {
  // Before any listener that draws.
  addEventListener("beforeprint", () => {
    printing = true;
  });
  addEventListener("afterprint", () => {
    printing = false;
  });
}

export function isPrinting(): boolean {
  return printing;
}

/** How wide something may be drawn that has this element's width. */
export function widthFor(element: Element): number {
  return printing ? PAPER : element.clientWidth;
}

/** Calls `listener` before printing and after it. */
export function onPaper(listener: () => void): void {
  addEventListener("beforeprint", listener);
  addEventListener("afterprint", listener);
}
