"""What a release has beside its packages, and that its version is one everywhere. Called by .github/workflows/release.yml.

    python3 packaging/release.py version v0.1.0     fails unless the tag, Cargo.toml, the package and CHANGELOG.md say the same
    python3 packaging/release.py files dist         writes the notes, the list of materials and SHA256SUMS beside the packages

Builds nothing: `make wheel sdist archives` does. Standard library alone.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
import sys

import licenses

ROOT = licenses.ROOT


def packages(version: str) -> list[str]:
    """What make builds: a release without one of these is none."""
    archives = [f"oomph-{version}-{machine}-unknown-linux-musl.tar.gz" for machine in ("aarch64", "x86_64")]
    return [*archives, f"oomph-{version}-py3-none-manylinux_2_28_x86_64.whl", f"oomph-{version}.tar.gz"]


def notes(version: str) -> str:
    """The section of CHANGELOG.md for a version, without its heading; empty if there is none."""
    sections = re.split(r"^## \[?([^\]\s]+)\]?.*$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    return dict(zip(sections[1::2], sections[2::2])).get(version, "").strip()


def check_version(tag: str) -> None:
    version = licenses.version()
    (package,) = re.findall(r'^VERSION = "(.+)"$', (ROOT / "python/oomph/_version.py").read_text(), re.MULTILINE)
    for what, said in (("the tag", tag.removeprefix("v")), ("python/oomph/_version.py", package)):
        if said != version:
            sys.exit(f"error: {what} is of version {said}, and Cargo.toml of {version}")
    if not notes(version):
        sys.exit(f"error: CHANGELOG.md has no section {version}\n\nhint: rename [Unreleased] to [{version}], with the date")


def write_files(folder: pathlib.Path) -> None:
    version = licenses.version()
    if missing := [name for name in packages(version) if not (folder / name).is_file()]:
        sys.exit(f"error: {folder} has no {', '.join(missing)}\n\nhint: make wheel sdist archives")
    (folder / "NOTES.md").write_text(notes(version) + "\n")
    materials = f"oomph-{version}.cdx.json"
    (folder / materials).write_text(licenses.as_cyclonedx(licenses.crates(), version))
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in sorted([*packages(version), materials])]
    (folder / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["version", tag]:
            check_version(tag)
        case ["files", folder]:
            write_files(pathlib.Path(folder))
        case _:
            sys.exit(f"usage: {sys.argv[0]} version TAG | files FOLDER")
