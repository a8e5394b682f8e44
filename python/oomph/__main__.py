"""``python -m oomph``: the command itself, with its own exit code."""

import os
import subprocess
import sys

from oomph._find import find_oomph


def main() -> int:
    command = [find_oomph(), *sys.argv[1:]]
    if os.name == "nt":
        return subprocess.call(command)
    os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
