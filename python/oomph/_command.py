"""What the script ``oomph`` of an installed package calls: the command, which the extension module carries."""

from __future__ import annotations

import signal
import sys

from oomph._extension import load_native


def main() -> int:
    try:
        command = load_native().command
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # Python would only note that Ctrl-C came, and wait for its own code to be called.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return command(sys.argv)
