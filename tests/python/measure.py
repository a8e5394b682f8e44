"""Give each recording named on stdin to a verb (explain, unless another is named), and print what it took, a JSON line each.

    python -S measure.py OOMPH FOLDER SECONDS [VERB] < paths

A line is [exit code, stderr, peak resident bytes, seconds].
"""

import json
import os
import resource
import subprocess
import sys
import time

binary, folder, seconds, verb = sys.argv[1], sys.argv[2], int(sys.argv[3]), (sys.argv[4:] or ["explain"])[0]
# To where it is forgotten: these write no file.
output = ["-o", "/dev/null"] if verb == "report" else []
for path in sys.stdin.read().splitlines():
    start = time.monotonic()
    process = subprocess.Popen(
        [binary, verb, path, *output],
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
