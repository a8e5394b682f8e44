"""Explain each recording named on stdin, and print what it took, a JSON line each.

    python -S measure.py OOMPH FOLDER SECONDS < paths

A line is [exit code, stderr, peak resident bytes, seconds].
"""

import json
import os
import resource
import subprocess
import sys
import time

binary, folder, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])
for path in sys.stdin.read().splitlines():
    start = time.monotonic()
    process = subprocess.Popen(
        [binary, "explain", path],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)),
    )
    err = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    print(json.dumps([code, err, usage.ru_maxrss * 1024, time.monotonic() - start]))
