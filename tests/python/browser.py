"""A page in a real browser: headless Chromium, driven by Playwright, with an ear on all that it says and asks for.

Numbers as oomph writes them are here as well, so that tests can say which text a page must have.
"""

import contextlib
import os
from dataclasses import dataclass, field

from playwright.sync_api import Page, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
# No service of the browser's own may ask for anything; a container has no sandbox for it, and little shared memory.
FLAGS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync
--disable-dev-shm-usage --force-color-profile=srgb --hide-scrollbars""".split()
# Milliseconds that a page may take where the machine is busy.
PATIENCE = 30_000


@contextlib.contextmanager
def chromium():
    """The browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS, timeout=PATIENCE)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page that is open."""

    page: Page
    # What it said on the console at the level of a warning or an error, what it threw, and dialogs that it opened.
    said: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @classmethod
    def new(cls, context):
        opened = cls(context.new_page())
        page = opened.page
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: message.type in ("warning", "error") and opened.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: opened.said.append(f"thrown: {error}"))
        page.on("dialog", lambda dialog: (opened.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: opened.requests.append(request.url))
        return opened

    def goto(self, path):
        """Opens a file, and waits until all its views are there."""
        self.page.goto(path.resolve().as_uri())
        self.ready()
        return self

    def hold_to_silence(self):
        """No warning, no error, no request but for the page itself. The next page begins anew."""
        said, requests = self.said.copy(), set(self.requests)
        self.said.clear()
        self.requests.clear()
        assert said == []
        # A link to a part of the page is no request.
        assert requests <= {self.page.url.partition("#")[0]}

    def ready(self):
        """Everything is drawn."""
        self.until("() => document.documentElement.dataset.ready")

    def run(self, script, *arguments):
        return self.page.evaluate(script, *arguments)

    def until(self, condition, argument=None):
        """Waits until a function of the page says so, and for the frame that shows it. Playwright's own way of waiting is forbidden by the
        page: it is eval."""
        poll = f"""async (argument) => {{
          const met = {condition}, until = performance.now() + {PATIENCE};
          while (!met(argument)) {{
            if (performance.now() > until) throw new Error(`not in time: ${{met}} ${{JSON.stringify(argument)}}`);
            await new Promise((resolve) => setTimeout(resolve, 20));
          }}
          await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
        }}"""
        self.page.evaluate(poll, argument)

    @property
    def state(self):
        """What the reader has chosen."""
        return self.run("({ ...window.oomph.store.state })")

    def framed(self):
        """Waits for two frames: what is in sight is drawn then."""
        self.run("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")

    def drawn(self):
        """Waits until what is out of sight is drawn as well."""
        self.run("() => new Promise((resolve) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(resolve)), 300))")

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def texts(self, selector):
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]


def bytes_in_words(value):
    """As `oomph explain` writes them: three digits."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            number = value / unit
            return f"{number:.{0 if number >= 100 else 2 if number < 10 else 1}f} {name}"
    return f"{value} B"


def change_in_words(value):
    return "0 B" if value == 0 else ("−" if value < 0 else "+") + bytes_in_words(abs(value))
