"""An environment like another, but without NVIDIA's libraries: as if only PyTorch's own wheel had been unpacked.

The loader resolves `$ORIGIN` by the path that it was given, but `..` by where a link leads: folders that libraries lie in are therefore
real ones, and only their files are links.
"""

import os
import pathlib


def packages_of(python):
    """The folder of packages of the environment of an interpreter."""
    (packages,) = pathlib.Path(python).absolute().parent.parent.glob("lib/python3*/site-packages")
    return packages


def without_libraries(folder, python, leave_out=()):
    """Makes the environment in `folder`, out of links, and returns its interpreter. `leave_out`: packages that it does not have either."""
    source = packages_of(python)
    environment = source.parents[2]
    packages = folder / source.relative_to(environment)
    packages.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text((environment / "pyvenv.cfg").read_text())
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(os.path.realpath(python))
    for entry in source.iterdir():
        if entry.name in ("torch", "nvidia", *leave_out) or entry.name.startswith("nvidia_"):
            continue
        (packages / entry.name).symlink_to(entry)
    link_torch(source / "torch", packages / "torch")
    return folder / "bin" / "python"


def link_torch(source, target):
    """PyTorch's package, out of links."""
    (target / "lib").mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name != "lib":
            (target / entry.name).symlink_to(entry)
    for entry in (source / "lib").iterdir():
        (target / "lib" / entry.name).symlink_to(entry)


def as_cpu_build(python):
    """Makes the PyTorch of an environment that was made here look like a build without CUDA. Returns its version without what is behind a plus."""
    torch = packages_of(python) / "torch"
    version = (torch / "version.py").read_text()
    facts = {}
    exec(version, facts)
    number = facts["__version__"].split("+")[0]
    (torch / "version.py").unlink()
    (torch / "version.py").write_text(f"__version__ = '{number}+cpu'\ncuda = None\n")
    (torch / "lib" / "libtorch_cuda.so").unlink()
    return number
