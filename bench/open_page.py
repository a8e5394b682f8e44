"""How long pages take to open in headless Chromium, from the navigation until everything is drawn.

    python bench/open_page.py ROUNDS PAGE

Prints one JSON object: seconds of every round until the words are there, and until all pictures are, and the size of the script's heap.
"""

import json
import pathlib
import sys

from playwright.sync_api import sync_playwright

FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
# The page marks its root once all is drawn; what was drawn is on the screen with the frame after.
DRAWN = """() => new Promise(resolve => {
    const wait = () => document.documentElement.dataset.ready
        ? requestAnimationFrame(() => setTimeout(() => resolve([performance.now(), performance.memory.usedJSHeapSize])))
        : setTimeout(wait, 1);
    wait();
})"""


def main() -> None:
    rounds, page = int(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    words, drawn, heap = [], [], 0
    with sync_playwright() as playwright:
        for _ in range(rounds):
            # A new browser each time: nothing is warm.
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS.split())
            tab = browser.new_page()
            tab.goto(page.as_uri(), wait_until="commit")
            milliseconds, used = tab.evaluate(DRAWN)
            words.append(tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1e3)
            drawn.append(milliseconds / 1e3)
            heap = max(heap, used)
            browser.close()
    print(json.dumps({"words": words, "drawn": drawn, "heap": heap}))


if __name__ == "__main__":
    main()
