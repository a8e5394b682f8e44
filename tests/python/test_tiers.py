"""Every test is in one of two tiers: `make test` runs the first, `make test-all` both. What is in the second, why, and what is left of it in the first, is in tests/second_tier.toml."""

import re
import subprocess

import tiers
from conftest import ROOT, TIERS


def test_every_test_is_in_one_of_two_tiers(pytestconfig):
    found = pytestconfig.stash[TIERS]
    print(f"{len(found.first)} of the first tier, {len(found.second)} of the second")
    names = [item.nodeid for item in (*found.first, *found.second)]
    assert len(names) == len(set(names)) == len(found.first) + len(found.second) > 0
    assert not found.unmatched, "tests/second_tier.toml names tests that are not there"


def test_what_is_left_to_the_second_tier_says_why_and_what_the_first_has_of_it():
    for name, section in tiers.Python().sections.items():
        assert (ROOT / "tests" / "python" / name).is_file(), name
        assert ("first" in section) != ("second" in section), f"{name}: either what stays, or what goes"
        assert section["why"] and section["kept"], name


def test_every_rust_test_of_the_second_tier_is_there():
    sources = subprocess.run(["git", "ls-files", "crates/**/*.rs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    text = "\n".join((ROOT / source).read_text() for source in sources if (ROOT / source).exists())
    functions = set(re.findall(r"\bfn (\w+)", text))
    for name, reason in tiers.of_rust().items():
        assert name.split("::")[-1] in functions, f"{name} is not there"
        assert reason, name
