"""Which tests `make test` leaves to `make test-all`, read from tests/second_tier.toml: whatever is not named there is in the first tier.

tiers.py skips      what `cargo test` is given after `--`, to leave out the Rust tests of the second tier
"""

import fnmatch
import pathlib
import sys

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

HERE = pathlib.Path(__file__).resolve().parent


def listed():
    """Sections of the list by what they are of: a file of tests/python, or "rust"."""
    return tomllib.loads((HERE / "second_tier.toml").read_text())


def of_rust():
    """The Rust tests of the second tier, each with why it is there and what is left in the first."""
    return listed()["rust"]


class Python:
    """The second tier's rows for tests of Python."""

    def __init__(self):
        self.sections = {name: section for name, section in listed().items() if name != "rust"}
        self.matched = set()

    def is_second(self, file, test):
        """Whether a test is of the second tier; its name may end in the case it is of, in brackets."""
        section = self.sections.get(file)
        if section is None:
            return False
        all_second = "first" in section
        for pattern in section["first" if all_second else "second"]:
            # Brackets mean themselves: they begin the name of a case.
            if test == pattern or test.split("[")[0] == pattern or fnmatch.fnmatchcase(test, pattern.replace("[", "[[]")):
                self.matched.add((file, pattern))
                return not all_second
        return all_second

    def unmatched(self, files):
        """Rows of these files that no test has the name of: it was renamed, or is gone."""
        rows = {(file, pattern) for file in files for pattern in self.sections.get(file, {}).get("first", self.sections.get(file, {}).get("second", []))}
        return sorted(rows - self.matched)


if __name__ == "__main__":
    if sys.argv[1:] != ["skips"]:
        sys.exit(__doc__)
    print(" ".join(f"--skip {name}" for name in of_rust()))
