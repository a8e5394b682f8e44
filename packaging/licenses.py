"""The crates that are compiled into oomph, and the script in its page: their licences as one text, or all of them as a list of materials (CycloneDX).

    python3 packaging/licenses.py text > THIRD-PARTY-LICENSES.txt
    python3 packaging/licenses.py cyclonedx > dist/oomph.cdx.json

What counts is what is linked: dependencies of the command and of the extension module, with all features, for the targets that are released, without build
scripts and macros. Cargo says which, by Cargo.lock (the network is asked only for crates that no build has fetched); the sources of the crates have the texts.
The same lock file gives the same bytes. Standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("oomph-cli", "oomph-python")
TARGETS = ("x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
# The page's script carries what it is bundled from, with its licence, at its beginning.
PAGE, BUNDLED = ROOT / "crates/oomph-report/assets/report.js", "uplot"
TEXTS = re.compile(r"(licen[cs]e|copying|notice|unlicense|copyright)([-._].*)?", re.IGNORECASE)
RULE = "=" * 100


def cargo(*words: str) -> str:
    return subprocess.run(["cargo", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def crates() -> list[dict]:
    """What cargo knows of each crate of others that is linked into oomph, by name and version."""
    found = {}
    for target in TARGETS:
        tree = ["tree", "--locked", "--all-features", "--target", target, "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
        linked = {tuple(line.split()[:2]) for package in PACKAGES for line in cargo(*tree, "--package", package).splitlines() if line}
        known = json.loads(cargo("metadata", "--locked", "--all-features", "--filter-platform", target, "--format-version", "1"))["packages"]
        found |= {one["id"]: one for one in known if one["source"] is not None and (one["name"], f"v{one['version']}") in linked}
    return sorted(found.values(), key=lambda one: (one["name"], one["version"]))


def license_texts(crate: dict) -> dict[str, str]:
    """The texts of licences that a crate carries, by the names of their files."""
    folder = pathlib.Path(crate["manifest_path"]).parent
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and TEXTS.fullmatch(path.name)]
    if named := crate.get("license_file"):
        files.append(folder / named)
    return {path.name: re.sub(r"[ \t]+\n", "\n", path.read_text(errors="replace").replace("\r\n", "\n")).strip() for path in files}


def as_text(linked: list[dict]) -> str:
    """All crates with their licences, then every text once, with the crates that carry it."""
    lines = ["Oomph is licensed under MIT or Apache-2.0. It contains these crates of others, under their own licences; the texts that they carry follow.", ""]
    lines += [f"{one['name']} {one['version']}: {one['license'] or 'see its text'}" for one in linked]
    texts: dict[str, tuple[str, list[str]]] = {}
    for crate in linked:
        for text in dict.fromkeys(license_texts(crate).values()):
            # The same words in other lines are the same licence.
            key = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
            texts.setdefault(key, (text, []))[1].append(f"{crate['name']} {crate['version']}")
    for text, whose in texts.values():
        lines += ["", RULE, *(", ".join(whose[at : at + 5]) + ("," if at + 5 < len(whose) else "") for at in range(0, len(whose), 5)), RULE, "", text]
    banner = re.match(r"/\*!?(.*?)\*/", PAGE.read_text(), re.DOTALL)
    assert banner is not None, f"{PAGE} does not begin with a licence"
    lines += ["", RULE, f"{BUNDLED} {bundled_version()} (npm), in the pages that oomph report writes", RULE, "", banner[1].strip()]
    return "\n".join(lines) + "\n"


def bundled_version() -> str:
    return json.loads((ROOT / "web/package.json").read_text())["devDependencies"][BUNDLED]


def as_cyclonedx(linked: list[dict], version: str) -> str:
    """The same as a list of materials that scanners read. No date and no random number in it: the same crates, the same file."""
    entries = re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([0-9a-f]+)"', (ROOT / "Cargo.lock").read_text())
    checksums = {f"{name} {number}": checksum for name, number, checksum in entries}

    def component(one: dict) -> dict:
        place = f"pkg:cargo/{one['name']}@{one['version']}"
        said = {"type": "library", "bom-ref": place, "name": one["name"], "version": one["version"], "purl": place}
        said["hashes"] = [{"alg": "SHA-256", "content": checksums[f"{one['name']} {one['version']}"]}]
        # The old way to write OR, which is no expression.
        return said | ({"licenses": [{"expression": one["license"].replace("/", " OR ")}]} if one["license"] else {})

    itself = {"type": "application", "bom-ref": f"pkg:pypi/oomph@{version}", "name": "oomph", "version": version, "purl": f"pkg:pypi/oomph@{version}"}
    page = f"pkg:npm/{BUNDLED}@{bundled_version()}"
    script = {"type": "library", "bom-ref": page, "name": BUNDLED, "version": bundled_version(), "purl": page, "licenses": [{"expression": "MIT"}]}
    whole = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": itself}, "components": [*map(component, linked), script]}
    return json.dumps(whole, indent=2) + "\n"


def version() -> str:
    """As Cargo.toml has it, once for all crates."""
    (found,) = re.findall(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    return found


if __name__ == "__main__":
    forms = {"text": as_text, "cyclonedx": lambda linked: as_cyclonedx(linked, version())}
    if len(sys.argv) != 2 or sys.argv[1] not in forms:
        sys.exit(f"usage: {sys.argv[0]} text|cyclonedx")
    sys.stdout.write(forms[sys.argv[1]](crates()))
