"""Packs a command into an archive for machines without Python: the same bytes whenever and wherever it is made.

python packaging/archive.py target/x86_64-unknown-linux-musl/dist/oomph x86_64-unknown-linux-musl dist
"""

from __future__ import annotations

import argparse
import gzip
import io
import re
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("README.md", "LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES.txt", "CHANGELOG.md")


def pack(command: Path, target: str, folder: Path) -> Path:
    """Writes `folder/oomph-VERSION-TARGET.tar.gz`."""
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert version is not None  # the workspace has one
    name = f"oomph-{version[1]}-{target}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tar.gz"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for file, mode in [(command, 0o755), *((ROOT / beside, 0o644) for beside in BESIDE)]:
            entry = tarfile.TarInfo(f"{name}/{file.name}")
            entry.size, entry.mode = file.stat().st_size, mode
            with file.open("rb") as source:
                archive.addfile(entry, source)
    partial = path.with_suffix(".partial")
    partial.write_bytes(gzip.compress(content.getvalue(), mtime=0))
    partial.replace(path)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", type=Path)
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    path = pack(arguments.command, arguments.target, arguments.folder)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
