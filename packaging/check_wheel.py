"""Whether a wheel runs on old systems: what each of its libraries asks of the C library, and how large it is.

    python packaging/check_wheel.py dist/oomph-*.whl

Looks at the extension module and at the libraries that lie in it, which other tools do not see: the command writes them to files when it puts them under a program.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Of manylinux_2_28, which PyTorch's own wheels need too.
GLIBC = (2, 28)
MOST_BYTES = 20_000_000
# The two recorders, the guard and the virtual GPU.
CARRIED = 4

ELF = b"\x7fELF\x02\x01\x01"
SONAME = re.compile(r"\(SONAME\).*\[(.+)\]")
VERSION = re.compile(r"Name: GLIBC_([\d.]+)")


def libraries(wheel: Path, folder: Path) -> dict[str, Path]:
    """Every library of a wheel as a file: those that are files in it, and those inside them."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if not content.startswith(ELF):
                continue
            found[name] = _as_file(content, folder, len(found))
            for match in list(re.finditer(re.escape(ELF), content))[1:]:
                path = _as_file(content[match.start() :], folder, len(found))
                if soname := SONAME.search(_readelf("-d", path)):
                    found[f"{soname[1]} in {name}"] = path
    return found


def _as_file(content: bytes, folder: Path, number: int) -> Path:
    path = folder / f"{number}.so"
    path.write_bytes(content)
    return path


def newest_glibc(library: Path) -> tuple[int, ...]:
    """The newest version of the C library's symbols that a library asks for."""
    return max((tuple(map(int, version.split("."))) for version in VERSION.findall(_readelf("-V", library))), default=(0,))


def asked(wheel: Path) -> dict[str, tuple[int, ...]]:
    """What each library of a wheel asks for."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: newest_glibc(path) for name, path in libraries(wheel, Path(folder)).items()}


def problems(size: int, asked: dict[str, tuple[int, ...]], glibc: tuple[int, ...] = GLIBC, most_bytes: int = MOST_BYTES) -> list[str]:
    """What is wrong with a wheel of so many bytes, in sentences."""
    wrong = [f"{size:,} bytes are more than {most_bytes:,}"] if size > most_bytes else []
    for name, newest in asked.items():
        if newest > glibc:
            wrong.append(f"{name} needs glibc {shown(newest)}, newer than {shown(glibc)}")
    if (inside := sum(" in " in name for name in asked)) != CARRIED:
        wrong.append(f"{inside} libraries lie in others, not {CARRIED}")
    return wrong


def shown(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _readelf(option: str, path: Path) -> str:
    # readelf complains about what follows a library that was cut out of another, on stderr.
    return subprocess.run(["readelf", "-W", option, str(path)], capture_output=True, text=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel
    size, found = wheel.stat().st_size, asked(wheel)
    print(f"{wheel.name}: {size / 1e6:.2f} MB")
    for name, newest in found.items():
        print(f"  {name}: glibc {shown(newest)}")
    wrong = problems(size, found)
    for sentence in wrong:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
