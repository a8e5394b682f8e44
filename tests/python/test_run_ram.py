"""``oomph run --ram``: which lines hold the machine's memory, held to what the program asked for and to what the kernel counted."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import COMMAND, ROOT

MIB = 1 << 20
# What the kernel counts of a process at this moment.
COUNTED = """
def counted():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) << 10
"""


@pytest.fixture
def recorded(oomph, tmp_path):
    """Runs a program with its RAM recorded: what it printed, and what is explained of each of its processes, the first's first."""

    def run(text, *options, code=0, python=sys.executable, env=None):
        path = tmp_path / "load.py"
        path.write_text(textwrap.dedent(text))
        command = [str(oomph.binary), "run", "--ram", *options, "--python", python, str(path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})})
        assert done.returncode == code, done.stderr
        first = tmp_path / "load-ram.oomph"
        paths = [first, *sorted(set(tmp_path.glob("load-ram-*.oomph")))]
        return done, [explained(oomph, path) for path in paths if path.exists()]

    return run


def explained(oomph, path):
    code, out, err = oomph("explain", "--format", "json", path)
    # 1: something is found that matters.
    assert code in (0, 1), err
    return json.loads(out)


def held(explanation):
    """By line of load.py."""
    lines = {}
    for line in explanation["host"]["lines"]:
        place = line["place"]
        if place is not None and place.get("file", "").endswith("load.py"):
            lines[place["line"]] = line
    return lines


PROGRAMS = {
    "arrays": """
        import numpy as np
        kept = [np.ones(4 << 17) for _ in range(50)]
        """,
    "copies": """
        import numpy as np
        table = np.ones((1 << 17, 40))
        narrow = table.astype("float32")
        both = np.concatenate([table, table])
        """,
    "grown": """
        data = bytearray()
        for _ in range(200):
            data.extend(b"x" * (1 << 20))
        """,
    "objects": """
        words = [str(i) * 5 for i in range(1_500_000)]
        """,
    "dicts": """
        rows = [{"id": i, "name": "n%d" % i, "value": i / 7} for i in range(300_000)]
        """,
    "frames": """
        import numpy as np, pandas as pd
        table = pd.DataFrame({f"c{i}": np.arange(1 << 20) * i for i in range(12)})
        joined = table.merge(table[["c1", "c2"]], left_index=True, right_index=True)
        """,
    "text": """
        import io
        import pandas as pd
        source = io.StringIO("\\n".join(["a,b,c", *(f"{i},text{i},{i / 3}" for i in range(200_000))]))
        table = pd.read_csv(source)
        """,
    "polars": """
        import polars as pl
        table = pl.DataFrame({"a": range(2_000_000)}).with_columns(b=pl.col("a") * 2.5)
        """,
    "tensors": """
        import torch
        kept = [torch.ones(1 << 20) for _ in range(40)]
        """,
    "threads": """
        import threading
        import numpy as np
        kept = []
        threads = [threading.Thread(target=lambda: kept.append(np.ones(1 << 17))) for _ in range(200)]
        [one.start() for one in threads]
        [one.join() for one in threads]
        """,
}


# What a program may do that a library in it must live with: each was the end of one, once. With what it is linked to, and how it is started.
HARSH = {
    "a fork while another thread holds a lock that the fork waits for": """
        #include <pthread.h>
        #include <stdlib.h>
        #include <unistd.h>
        #include <sys/wait.h>
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        static void take(void) { pthread_mutex_lock(&lock); }
        static void give(void) { pthread_mutex_unlock(&lock); }
        static void *work(void *_) { for (;;) { take(); char *p = malloc(100000); p[0] = 1; free(p); give(); } }
        int main() {
            pthread_t thread;
            pthread_atfork(take, give, give);
            pthread_create(&thread, 0, work, 0);
            for (int i = 0; i < 100; i++) { int child = fork(); if (!child) _exit(0); waitpid(child, 0, 0); }
            return 3;
        }""",
    "threads that are cancelled in the middle of a request": """
        #include <pthread.h>
        #include <stdlib.h>
        #include <unistd.h>
        static void *work(void *_) { for (;;) { for (int i = 0; i < 50; i++) { char *p = malloc(100000 + i * 1000); p[0] = 1; free(p); } pthread_testcancel(); } }
        int main() {
            for (int i = 0; i < 500; i++) { pthread_t thread; pthread_create(&thread, 0, work, 0); usleep(300 + i % 700); pthread_cancel(thread); pthread_join(thread, 0); }
            return 3;
        }""",
    "an exit in a handler of signals": """
        #include <signal.h>
        #include <stdlib.h>
        #include <sys/time.h>
        static void handle(int _) { exit(3); }
        int main() {
            signal(SIGALRM, handle);
            struct itimerval soon = {{0, 0}, {0, 400000}};
            setitimer(ITIMER_REAL, &soon, 0);
            for (;;) { char *p = malloc(100000); p[0] = 1; free(p); }
        }""",
    "a thread with 16 KiB of stack": """
        #include <pthread.h>
        #include <stdlib.h>
        #include <unistd.h>
        #include <sys/mman.h>
        static void *work(void *_) { for (int i = 0; i < 1000; i++) { char *p = malloc(100000); p[0] = 1; free(p); usleep(200); } return 0; }
        int main() {
            char *large = mmap(0, 32 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            pthread_t thread;
            pthread_attr_t small;
            large[0] = 1;
            pthread_attr_init(&small);
            pthread_attr_setstacksize(&small, 16384);
            if (pthread_create(&thread, &small, work, 0)) return 1;
            pthread_join(thread, 0);
            return 3;
        }""",
    "files that may not become long": """
        #include <stdlib.h>
        #include <sys/resource.h>
        int main() {
            struct rlimit small = {20000, 20000};
            setrlimit(RLIMIT_FSIZE, &small);
            for (int i = 0; i < 100; i++) { char *p[500]; for (int j = 0; j < 500; j++) p[j] = malloc(70000 + j); for (int j = 0; j < 500; j += 2) free(p[j]); }
            return 3;
        }""",
    "addresses of terabytes that are never touched": """
        #include <sys/mman.h>
        #include <time.h>
        int main() {
            struct timespec begin, end;
            clock_gettime(CLOCK_MONOTONIC, &begin);
            char *p = mmap(0, 16L << 40, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (p == MAP_FAILED) return 3;
            p[0] = 1;
            munmap(p, 16L << 40);
            clock_gettime(CLOCK_MONOTONIC, &end);
            return end.tv_sec - begin.tv_sec < 2 ? 3 : 1;
        }""",
    "descriptors that it closes and opens again": """
        #include <fcntl.h>
        #include <stdlib.h>
        #include <unistd.h>
        #include <sys/wait.h>
        int main() {
            int status, own;
            for (int i = 3; i < 1024; i++) close(i);
            for (int i = 0; i < 500; i++) malloc(100000);
            usleep(150000);
            malloc(100000);
            for (int i = 3; i < 1024; i++) close(i);
            own = open("/dev/null", O_WRONLY);
            if (own != 3) return 1;
            int child = fork();
            if (!child) _exit(write(own, "x", 1) == 1 ? 3 : 1);
            waitpid(child, &status, 0);
            return WEXITSTATUS(status);
        }""",
}


@pytest.mark.parametrize("name", HARSH)
def test_a_program_lives_as_it_would_without(oomph, tmp_path, name):
    (tmp_path / "harsh.c").write_text(textwrap.dedent(HARSH[name]))
    subprocess.run(["gcc", "-O1", "-w", "-o", tmp_path / "harsh", tmp_path / "harsh.c", "-lpthread"], check=True)
    done = subprocess.run([str(oomph.binary), "run", "--ram", str(tmp_path / "harsh")], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    assert explained(oomph, tmp_path / "harsh-ram.oomph")["host"]["asked"] >= 0


# Linked to run at a fixed address, as the Python of Debian and Ubuntu is: functions whose address it uses have a stub in it, which everybody finds under their names.
FIXED = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
void *(*volatile more)(void *, size_t) = realloc;
void *(*volatile hook)(size_t) = malloc;
void (*volatile unhook)(void *) = free;
static void *own_take(size_t size) { return (char *)malloc(size + 64) + 64; }
static void own_give(void *block) { free((char *)block - 64); }
static void *call(void *library, const char *name) { return dlsym(library, name); }
static void *work(void *_) { char *own = malloc(10 << 20); own[0] = 1; free(own); return 0; }
int main(int count, char **words) {
    void *(*volatile take)(size_t) = malloc;
    void (*volatile give)(void *) = free;
    void *library = 0;
    hook = own_take;
    unhook = own_give;
    if (count > 1) {
        library = dlopen(words[1], RTLD_NOW);
        if (!library) return 1;
        int (*attach)(void) = call(library, "oomph_ram_attach"), (*start)(const char *, unsigned long) = call(library, "oomph_ram_start");
        attach();
        if (start(words[2], 100000000)) return 2;
    }
    pthread_t thread;
    if (pthread_create(&thread, 0, work, 0) || pthread_join(thread, 0)) return 4;
    unhook(hook(100));
    char *one = malloc(50 << 20), *other = take(20 << 20);
    other = more(other, 30 << 20);
    memset(one, 1, 50 << 20);
    memset(other, 1, 30 << 20);
    if (library) { int (*stop)(void) = call(library, "oomph_ram_stop"); stop(); }
    give(one);
    free(other);
    return 3;
}
"""


def test_a_program_at_a_fixed_address(oomph, tmp_path):
    (tmp_path / "fixed.c").write_text(FIXED)
    subprocess.run(["gcc", "-O1", "-w", "-no-pie", "-fno-pie", "-o", tmp_path / "fixed", tmp_path / "fixed.c", "-ldl", "-lpthread"], check=True)
    from_the_start = [str(oomph.binary), "run", "--ram", "-o", str(tmp_path / "start.oomph"), str(tmp_path / "fixed")]
    done = subprocess.run(from_the_start, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    library = subprocess.run([str(oomph.binary), "run", "--ram", "--library"], capture_output=True, text=True, check=True).stdout.strip()
    assert subprocess.run([tmp_path / "fixed", library, tmp_path / "middle.oomph"], timeout=60).returncode == 3
    for recording in ("start-ram.oomph", "middle.oomph"):
        host = explained(oomph, tmp_path / recording)["host"]
        assert host["by_how"]["large"] == 80 * MIB, recording


# The unwinder of the C library asks for memory itself while it holds a lock, where frames were registered, as compilers at run time do.
REGISTERED = """
import ctypes, os, struct, threading, time
gcc, libc = ctypes.CDLL("libgcc_s.so.1"), ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
CODE = 0x10000000
def entry(body):
    body += bytes(-len(body) % 8 + 4)
    return struct.pack("<I", len(body)) + body
def register(count):
    parts = [entry(struct.pack("<IB", 0, 1) + bytes([0, 1, 0x78, 0x10, 0x0C, 7, 8, 0x90, 1]))]
    at = len(parts[0])
    for number in range(count):
        parts.append(entry(struct.pack("<IQQ", at + 4, CODE + number * 16, 16)))
        at += len(parts[-1])
    kept.append(ctypes.create_string_buffer(b"".join(parts) + bytes(4)))
    gcc.__register_frame(ctypes.c_void_p(ctypes.addressof(kept[-1])))
kept = []
register(20_000)
gcc._Unwind_Find_FDE(ctypes.c_void_p(CODE + 33), (ctypes.c_void_p * 3)())
def work():
    while True:
        libc.free(libc.malloc(ctypes.c_size_t(100_000)))
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
end = time.time() + 3
while time.time() < end:
    if (child := os.fork()) == 0:
        libc.free(libc.malloc(ctypes.c_size_t(100_000)))
        os._exit(0)
    os.waitpid(child, 0)
print("done", flush=True)
os._exit(0)
"""


def test_functions_of_c_are_waited_for_by_nobody(recorded):
    done, _ = recorded(REGISTERED, "--native")
    assert done.stdout == "done\n"


def test_text_that_is_put_together_is_counted_once(recorded):
    """By realloc: each string is asked for three times, in different sizes."""
    _, (explanation,) = recorded(
        """
        words = ["word number %d of many" % i for i in range(500_000)]
        kept = []
        for i in range(300_000):
            row = []
            for j in range(3):
                row.append(j)
            kept.append(row)
        """
    )
    line = held(explanation)[2]
    truth = sum(sys.getsizeof(f"word number {i} of many") for i in range(500_000)) + 8 * 500_000
    assert abs(line["bytes"] - truth) < 2.5 * line["error"] + 0.05 * truth
    grown = held(explanation)
    rows = sum(grown[number]["bytes"] for number in (5, 7) if number in grown)
    # A list of 56 bytes, those of the collector among them, and room for four.
    # Twice the standard deviation of so many bytes is a tenth of them: five times would be a quarter.
    assert rows == pytest.approx(300_000 * (56 + 32), rel=0.25)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_peak_is_the_kernels_own_count(recorded, name):
    """Programs that hold what they have to their end: their count there is their highest."""
    text = textwrap.dedent(PROGRAMS[name])
    done, (explanation, *_) = recorded(text + COUNTED + "print('COUNTED', counted())\n")
    (own,) = map(int, re.findall(r"COUNTED (\d+)", done.stdout))
    host = explanation["host"]
    assert abs(host["anonymous"] - own) < 0.02 * own + MIB or host["anonymous"] > own
    assert host["asked"] > 0.5 * own


def test_bytes_by_line_are_what_was_asked_for(recorded):
    _, (explanation,) = recorded(
        """
        import numpy as np

        def table(rows):
            return np.ones((rows, 128))

        kept = [table(8192) for _ in range(30)]
        wide = kept[0].astype("complex128")
        small = [bytes(1000) for _ in range(200_000)]
        del kept[:10]
        """
    )
    lines = held(explanation)
    # A sample of the small objects beside them may be among them.
    assert lines[5]["bytes"] == pytest.approx(30 * 8 * MIB, abs=MIB) and 30 <= lines[5]["blocks"] < 35
    assert lines[8]["bytes"] == pytest.approx(16 * MIB, abs=MIB)
    # 1033 bytes each, of which samples are taken; and the list itself.
    small = lines[9]
    assert abs(small["bytes"] - 200_000 * (1033 + 8)) < 2.5 * small["error"]
    assert 0 < small["error"] < 0.1 * small["bytes"]


def test_functions_of_c_are_named_where_they_are_wanted(recorded, oomph, tmp_path):
    text = """
        import mmap
        import numpy as np
        kept = np.ones(1 << 23)
        narrow = kept.astype("float32")
        pages = mmap.mmap(-1, 32 << 20)
        for place in range(0, 32 << 20, 4096):
            pages[place] = 1
        pages.close()
        """
    _, [found] = recorded(text, "--native")
    # NumPy's astype is such a function: only by its name is it known what was converted.
    [copy] = [one for one in found["findings"] if one["code"] == "OM501"]
    assert [where["line"] for where in copy["where"]] == [5, 4] and "32.0 MiB are in RAM twice" in copy["title"], copy

    def functions(line):
        [stack] = [one for one in found["host"]["stacks"] if one["bytes"] >= 30 * MIB and one["frames"][-1]["line"] == line]
        frames = [(frame["function"], frame["file"].rsplit("/", 1)[-1]) for frame in stack["frames"]]
        assert frames[-1] == ("<module>", "load.py")
        count = sum(name.startswith("<native> ") for name, _ in frames)
        assert all(name.startswith("<native> ") for name, _ in frames[:count]), "functions of C are innermost"
        return [(name.removeprefix("<native> "), file) for name, file in frames[:count]]

    numpy = functions(4)
    assert any(name.startswith("PyArray_New") and file.startswith("_multiarray_umath") for name, file in numpy), numpy
    assert not any(name == "_PyEval_EvalFrameDefault" or file.startswith("liboomph") for name, file in numpy)
    assert any(file.startswith("mmap.") or name == "new_mmap_object" for name, file in functions(6)), "what is mapped has them too"
    # The lines are the same as without.
    assert held(found)[4]["bytes"] >= 64 * MIB
    code, out, err = oomph("explain", "--stacks", "--lines", "1", tmp_path / "load-ram.oomph")
    assert code == 0 and "Held at the peak, by stack (innermost first)" in out and " PyArray_New" in out, err
    code, out, err = oomph("explain", "--within", f"{tmp_path / 'load.py'}:4", "--within", "nowhere.py", tmp_path / "load-ram.oomph")
    assert code == 0 and "line 4 " in out and "nowhere.py: no line of it held anything at the peak" in err, err
    # Under the name of the library alone, without them.
    _, [plain] = recorded(text)
    largest = plain["host"]["stacks"][0]["frames"]
    assert largest[0]["function"] == "<library>" and not any(frame["function"].startswith("<native>") for frame in largest)


def test_the_outermost_line_is_known_however_deep_it_is(recorded):
    """What is deep is a library's, as in an import of PyTorch: its own line is not among the innermost frames."""
    _, (explanation,) = recorded(
        """
        import textwrap, types
        import numpy as np
        code = compile("def deep(n):\\n    return deep(n - 1) if n else np.ones(1 << 20)\\n", "/usr/lib/python3/dist-packages/deep.py", "exec")
        library = {"np": np}
        exec(code, library)
        kept = library["deep"](300)
        shallow = library["deep"](3)
        """
    )
    lines = held(explanation)
    assert lines[7]["bytes"] == pytest.approx(8 * MIB, abs=MIB) and lines[8]["bytes"] == pytest.approx(8 * MIB, abs=MIB)


def test_what_comes_and_goes_does_not_fill_the_file(recorded, tmp_path):
    _, (explanation,) = recorded(
        """
        import numpy as np
        for _ in range(20_000):
            x = np.ones(1 << 14)
            y = x * 2 + x
        """
    )
    assert (tmp_path / "load-ram.oomph").stat().st_size < 200_000
    lines = held(explanation)
    # Beside x and y the loop holds the last y, or x * 2, for a moment.
    both = [lines[4], lines[5]]
    # A sample of small objects stands for 256 KiB, if there is one.
    assert 2 * (1 << 17) <= sum(line["bytes"] for line in both) and sum(line["bytes"] - line["error"] for line in both) <= 5 * (1 << 17)


def test_processes_have_recordings_of_their_own(recorded):
    done, (first, *others) = recorded(
        """
        import multiprocessing, subprocess, sys
        import numpy as np

        def work(megabytes):
            return np.ones(megabytes << 17).sum()

        if __name__ == "__main__":
            kept = np.ones(50 << 17)
            with multiprocessing.get_context("fork").Pool(1) as pool:
                pool.map(work, [40])
            subprocess.run([sys.executable, "-c", "import numpy as np; np.ones(30 << 17)"], check=True)
            subprocess.run(["ls", "/"], stdout=subprocess.DEVNULL, check=True)
        """
    )
    assert held(first)[9]["bytes"] == pytest.approx(50 * MIB, abs=MIB)
    # Of ls there is none.
    assert len(others) == 2
    by_size = sorted(others, key=lambda one: one["host"]["asked"])
    assert any(held(one).get(6, {}).get("bytes") == pytest.approx(40 * MIB, abs=MIB) for one in by_size)
    assert done.stderr.count(" has RAM: peak ") == 3


@pytest.mark.parametrize("moment", range(4))
def test_a_killed_program_has_left_the_line(oomph, tmp_path, moment):
    path = tmp_path / "load.py"
    path.write_text(
        "import os\nimport numpy as np\nkept = []\nwhile True:\n    kept.append(np.ones(1 << 17))\n    if len(kept) == 200:\n        print(os.getpid(), flush=True)\n    if len(kept) > 2000:\n        kept.clear()\n"
    )
    command = [str(oomph.binary), "run", "--ram", "--python", sys.executable, str(path)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        child = int(process.stdout.readline())
        time.sleep(0.037 * moment)
        os.kill(child, signal.SIGKILL)
        assert process.wait(60) == 128 + signal.SIGKILL
    lines = held(explained(oomph, tmp_path / "load-ram.oomph"))
    assert lines[5]["bytes"] >= 180 * MIB


def test_handlers_of_signals_and_forks_among_threads(recorded):
    done, _ = recorded(
        """
        import os, signal, threading, time
        import numpy as np
        signal.signal(signal.SIGALRM, lambda *_: np.ones(1 << 14))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        end = time.monotonic() + 3
        def churn():
            while time.monotonic() < end:
                kept = [np.ones(1 << (7 + i % 9)) for i in range(200)]
        threads = [threading.Thread(target=churn) for _ in range(4)]
        [one.start() for one in threads]
        forks = 0
        while time.monotonic() < end:
            child = os.fork()
            if child == 0:
                np.ones(1 << 18)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            forks += 1
        [one.join() for one in threads]
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("forks", forks)
        """
    )
    assert int(done.stdout.split()[-1]) > 10


def test_thousands_of_threads(recorded):
    done, _ = recorded(
        """
        import threading
        def work():
            return bytearray(100_000)
        for _ in range(20):
            threads = [threading.Thread(target=work) for _ in range(500)]
            [one.start() for one in threads]
            [one.join() for one in threads]
        print("done")
        """
    )
    assert done.stdout == "done\n"


def test_a_program_that_runs_out_of_address_space_gets_its_own_error(recorded):
    done, _ = recorded(
        """
        import resource
        import numpy as np
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        kept = []
        try:
            while True:
                kept.append(np.ones(1 << 20))
        except MemoryError:
            kept.clear()
            print("caught")
        """
    )
    assert done.stdout == "caught\n"


def test_what_cannot_be_recorded_is_said(oomph, tmp_path):
    (tmp_path / "load-ram.oomph").write_text("mine")
    (tmp_path / "load.py").write_text("print('ran')\n")
    done = subprocess.run([str(oomph.binary), "run", "--ram", "--python", sys.executable, "load.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "ran\n"
    assert "RAM was not recorded" in done.stderr
    assert (tmp_path / "load-ram.oomph").read_text() == "mine"


# Stands between the recorder and the system: one call of the recorder's fails, the one that FAIL_AT numbers. How many there were is told at the end.
FAILS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
static int count, wanted = -2;
static int fails(void *caller) {
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname || !strstr(info.dli_fname, "liboomph_ram")) return 0;
    if (wanted == -2) { char *text = getenv("FAIL_AT"); wanted = text ? atoi(text) : -1; }
    if (++count != wanted) return 0;
    errno = ENOSPC;
    return 1;
}
#define NEXT(name) static __typeof__(name) *next; if (!next) next = dlsym(RTLD_NEXT, #name); if (fails(__builtin_return_address(0))) return -1
int open64(const char *path, int flags, ...) { va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); NEXT(open64); return next(path, flags, mode); }
ssize_t write(int file, const void *data, size_t size) { NEXT(write); return next(file, data, size); }
ssize_t read(int file, void *data, size_t size) { NEXT(read); return next(file, data, size); }
int flock(int file, int how) { NEXT(flock); return next(file, how); }
int ftruncate64(int file, off_t size) { NEXT(ftruncate64); return next(file, size); }
int statx(int folder, const char *path, int flags, unsigned mask, void *out) { NEXT(statx); return next(folder, path, flags, mask, out); }
long syscall(long number, ...) {
    long a[6]; va_list rest; va_start(rest, number); for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long); va_end(rest);
    static long (*next)(long, ...); if (!next) next = dlsym(RTLD_NEXT, "syscall");
    if (fails(__builtin_return_address(0))) return -1;
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
__attribute__((destructor)) static void tell(void) { char *path = getenv("TELL"); if (path) { FILE *file = fopen(path, "w"); if (file) { fprintf(file, "%d", count); fclose(file); } } }
"""


def test_whatever_call_of_the_recorder_fails_the_program_goes_on(oomph, tmp_path):
    (tmp_path / "fails.c").write_text(FAILS)
    shim = tmp_path / "fails.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, tmp_path / "fails.c", "-ldl"], check=True)
    library = subprocess.run([str(oomph.binary), "run", "--ram", "--library"], capture_output=True, text=True, check=True).stdout.strip()
    program = "import ctypes; ctypes.PyDLL(None).oomph_ram_learn(); kept = [bytearray(1 << 20) for _ in range(60)]; small = [str(i) * 9 for i in range(20_000)]; del kept; print(len(small))"

    def run(fail_at):
        env = {
            **os.environ,
            "LD_PRELOAD": f"{library}:{shim}",
            "OOMPH_RAM": f"{os.getpid()}:100000000:{tmp_path / 'kept'}",
            "FAIL_AT": str(fail_at),
            "TELL": str(tmp_path / "count"),
        }
        return subprocess.run([sys.executable, "-S", "-c", program], env=env, capture_output=True, text=True, timeout=60)

    done = run(0)
    assert (done.returncode, done.stdout) == (0, "20000\n"), done.stderr
    calls = int((tmp_path / "count").read_text())
    assert calls > 20
    assert explained(oomph, tmp_path / "kept.oomph")["host"]["asked"] > 60 * MIB
    for call in range(1, calls + 1):
        done = run(call)
        assert (done.returncode, done.stdout, done.stderr) == (0, "20000\n", ""), f"with call {call} of {calls} failing"


ON_A_CARD = """
    import numpy as np
    import torch
    data = np.random.rand(1 << 18, 64)
    kept = torch.tensor(data, dtype=torch.float32)
    pinned = torch.ones(4 << 18).pin_memory()
    model = torch.nn.Linear(64, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(kept[:1000].cuda()).mean().backward()
        optimizer.step()
"""


def test_a_prediction_says_the_hosts_memory(oomph, tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(ON_A_CARD) + textwrap.dedent(COUNTED) + "print('COUNTED', counted())\n")

    def predict(ram, *options):
        return oomph("predict", "--gpu", "t4", "--no-recording", f"--ram={ram}", "--python", sys.executable, *options, "train.py", cwd=tmp_path, timeout=600)

    code, out, err = predict("100MiB", "--format", "json")
    assert code == 1, err
    host = json.loads(out)["host"]
    (own,) = map(int, re.findall(r"COUNTED (\d+)", err))
    # What the program counts of itself has the virtual card in it.
    assert host["most"] + host["virtual_card"] == pytest.approx(own, rel=0.05)
    lines = {line["place"]["line"]: line["bytes"] for line in host["lines"] if line["place"] and line["place"]["file"].endswith("train.py")}
    assert lines[4] == pytest.approx(128 * MIB, rel=0.01) and lines[5] == pytest.approx(64 * MIB, rel=0.01)
    assert host["pinned"] == 4 * MIB
    code, out, err = predict("64GiB")
    assert code == 0 and "fits 64.0 GiB: " in out, out + err


def test_pinned_memory_is_a_kind(oomph, tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(ON_A_CARD))
    done = subprocess.run([str(oomph.binary), "run", "--gpu", "t4", "--ram", "--python", sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    kinds = {kind["kind"]: kind["bytes"] for kind in explained(oomph, tmp_path / "train-ram.oomph")["host"]["by_kind"]}
    assert kinds["pinned_memory"] == 4 * MIB
    assert kinds["arrays"] >= 128 * MIB and kinds["tensors"] >= 64 * MIB


STEPS = """
    import numpy as np, torch
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    def train(kept):
        for step in range(30):
            kept.append(np.ones(1 << 17))
            batch = np.ones((8 + step % 3) << 17)
            weight.grad = torch.ones(4)
            optimizer.step()
"""


def grows_by_step(explanation):
    """Line 7 keeps 1 MiB a step; line 8 holds a batch, and not more and more."""
    lines = {one["place"]["line"]: one for one in explanation["host"]["growth"] if one["place"] and one["place"]["file"].endswith("load.py")}
    assert set(lines) == {7}, lines
    grown = lines[7]
    steps = grown["steps"]
    assert (steps["first"], steps["last"]) == (3, 30)
    # Small objects of the line are sampled: seldom, one stands for 64 KiB.
    assert abs(grown["bytes"] - 28 * MIB) <= max(grown["error"], 4096) and abs(grown["blocks"] - 28) < 8, grown
    assert steps["bytes_per_step"] == pytest.approx(MIB, abs=64 << 10)
    finding = next(one for one in explanation["findings"] if one["code"] == "OM503")
    assert re.match(r"RAM grows by 1\.0\d MiB a step and nothing of it is freed, at \S*load\.py:7 train$", finding["title"]), finding
    assert finding["severity"] == "warning"


def test_what_grows_in_each_step_is_told_by_step(oomph, recorded, tmp_path):
    _, (explanation, *_) = recorded(STEPS + "    train([])\n")
    grows_by_step(explanation)
    code, out, _ = oomph("explain", tmp_path / "load-ram.oomph")
    assert code == 1 and re.search(r"1\.0\d MiB/step  \S+ \+2\d blocks.*, over steps 3 to 30\n", out), out


def test_a_part_that_is_recorded_has_its_own_steps(oomph, tmp_path):
    """Steps before and after it are not counted."""
    (tmp_path / "load.py").write_text(
        textwrap.dedent(STEPS)
        + textwrap.dedent("""
        import oomph
        train([])
        with oomph.record("part.oomph", ram=True, quiet=True):
            train([])
        train([])
    """)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OOMPH_COMMAND": COMMAND}
    subprocess.run([sys.executable, "load.py"], cwd=tmp_path, check=True, env=environment, timeout=120)
    grows_by_step(explained(oomph, tmp_path / "part-ram.oomph"))
