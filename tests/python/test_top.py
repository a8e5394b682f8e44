"""`oomph top` as its users meet it: in a real terminal (tmux), as lines of JSON, scraped by a Prometheus client. Its numbers are held against /proc and NVML."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import pytest
from conftest import A_SAMPLE, ROOT

GIB = 1 << 30
MIB = 1 << 20
FAKE_NVML = ROOT / "crates" / "oomph-host" / "tests" / "nvml" / "fake_nvml.c"
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def alone(tmp_path_factory, monkeypatch):
    """What programs of other tests say of themselves is not seen here: they run at the same time."""
    monkeypatch.setenv("OOMPH_STATUS_FOLDER", str(tmp_path_factory.mktemp("said") / "status"))


def size(value):
    """Bytes as oomph writes them."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            number = value / unit
            return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f} {name}"
    return f"{value} B"


def status(pid):
    """Numbers of /proc/<pid>/status, in bytes."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}


def meminfo():
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}


class Terminal:
    """A terminal of tmux with a program in it."""

    def __init__(self, command, width=120, height=40, env=None):
        self.folder = tempfile.mkdtemp(prefix="tmux")
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR", "COLUMNS", "LINES")},
            "TMUX_TMPDIR": self.folder,
            "LC_ALL": "C.UTF-8",
            **(env or {}),
        }
        self.name = f"oomph{os.getpid()}-{next(NUMBERS)}"
        self.code = pathlib.Path(self.folder) / "code"
        (pathlib.Path(self.folder) / "conf").write_text("set -g remain-on-exit on\n")
        # tmux 3.3 sometimes misses how a program ended: a shell notes it.
        noted = ["sh", "-c", f'"$@"; echo $? > {self.code}.new; mv {self.code}.new {self.code}', "sh", *command]
        self.tmux("-f", f"{self.folder}/conf", "new-session", "-d", "-x", str(width), "-y", str(height), *noted)

    def tmux(self, *words):
        done = subprocess.run(["tmux", "-u", "-L", self.name, *words], env=self.environment, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def press(self, *keys):
        for key in keys:
            # After Escape, wait for what it does: with what follows at once it would be one key.
            self.tmux("send-keys", key)

    def type(self, text):
        self.tmux("send-keys", "-l", text)

    def resize(self, width, height):
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self, *options):
        return self.tmux("capture-pane", "-p", *options)

    def wait(self, wanted, *options, seconds=20):
        """Until the screen has what is wanted: a text, or what a function says."""
        test = wanted if callable(wanted) else lambda screen: wanted in screen
        end = time.monotonic() + seconds
        while True:
            screen = self.screen(*options)
            if test(screen):
                # It may have been looked at while it was drawn: what is there a moment later is whole.
                time.sleep(0.15)
                screen = self.screen(*options)
                if test(screen):
                    return screen
            assert time.monotonic() < end, f"never came: {wanted}\n{screen}"
            time.sleep(0.05)

    def pid(self):
        """The program's number."""
        shell = int(self.tmux("display-message", "-p", "#{pane_pid}"))
        return int(pathlib.Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    def ended(self, seconds=10):
        """The exit code, once it has ended."""
        end = time.monotonic() + seconds
        while not self.code.exists():
            assert time.monotonic() < end, self.screen()
            time.sleep(0.05)
        return int(self.code.read_text())

    def close(self):
        with contextlib.suppress(AssertionError):
            self.tmux("kill-server")
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def terminal():
    """Opens terminals, and closes them all."""
    opened = []

    def open_one(*arguments, **options):
        one = Terminal(*arguments, **options)
        opened.append(one)
        return one

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def top(terminal, oomph):
    """Opens `oomph top` in a terminal."""

    def open_one(*arguments, **options):
        one = terminal([oomph.binary, "top", "--interval", "250ms", *arguments], **options)
        one.wait(lambda screen: "oomph top" in screen)
        return one

    return open_one


@pytest.fixture
def child():
    """Starts processes that wait, and ends them all."""
    started = []

    def start(code="", name=None):
        program = f"{code}\nprint('ready', flush=True)\nimport time\nwhile True: time.sleep(100)"
        one = subprocess.Popen([sys.executable, "-c", program, *([name] if name else [])], stdout=subprocess.PIPE, text=True)
        started.append(one)
        assert one.stdout.readline() == "ready\n"
        return one

    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture(scope="module")
def nvml_library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, FAKE_NVML], check=True)
    return library


@pytest.fixture
def nvml(nvml_library):
    """The environment in which NVML says what a test wants; settings can be changed while it is open."""
    beside = nvml_library.with_name(nvml_library.name + ".conf")

    def settings(**values):
        new = beside.with_suffix(".new")
        new.write_text("".join(f"FAKE_NVML_{name}={value}\n" for name, value in values.items()))
        new.replace(beside)
        return {"OOMPH_NVML": str(nvml_library)}

    yield settings
    beside.unlink(missing_ok=True)


def row_of(screen, pid):
    rows = [line for line in screen.splitlines() if re.match(rf"\s*{pid} ", line)]
    return rows[0] if rows else None


def chosen(shown):
    """The process whose row is reversed, of a screen with its escapes: they hold over the ends of lines."""
    is_reversed = False
    for piece in re.split(r"(\x1b\[[\d;]*m|\n)", shown):
        if codes := re.fullmatch(r"\x1b\[([\d;]*)m", piece):
            for code in codes[1].split(";"):
                is_reversed = code == "7" or (is_reversed and code not in ("", "0", "27"))
        elif is_reversed and (row := re.match(r"\s*(\d+) ", piece)):
            return int(row[1])
    return None


def choose(screen, pid):
    """Puts the mark on a process. The filter looks at commands too: others may have this number there."""
    screen.press("/")
    screen.type(str(pid))
    screen.press("Enter")
    screen.wait(lambda shown: row_of(shown, pid))
    screen.press("Home")
    for _ in range(20):
        now = chosen(screen.wait(lambda shown: chosen(shown) is not None, "-e"))
        if now == pid:
            return
        screen.press("Down")
        with contextlib.suppress(AssertionError):
            screen.wait(lambda shown, before=now: chosen(shown) != before, "-e", seconds=2)
    raise AssertionError(screen.screen())


# The screen


def parts_of_ram():
    """What RAM is used for, as /proc/meminfo has it now."""
    said = meminfo()
    shared = said["Shmem"]
    return {
        "available": said["MemAvailable"],
        "anonymous": said["AnonPages"],
        "file": said["Cached"] + said["Buffers"] - shared,
        "shared": shared,
        "kernel": sum(said.get(name, 0) for name in ("Slab", "PageTables", "SecPageTables", "Percpu", "Zswap")) + max(said["VmallocUsed"], said["KernelStack"]),
        "free": said["MemFree"],
        "pinned": max(said["Mlocked"], said["Unevictable"]),
    }


def test_ram_is_what_the_kernel_says(top):
    # Others run too: until all that is shown is what the kernel says at that moment.
    shown = top(width=200).wait(lambda shown: all(f"{name} {size(value)}" in shown for name, value in parts_of_ram().items()), seconds=60)
    total = meminfo()["MemTotal"]
    assert f"of {size(total)}" in next(line for line in shown.splitlines() if line.startswith("RAM"))
    shm = os.statvfs("/dev/shm")
    assert f"of {size(shm.f_blocks * shm.f_frsize)}" in next(line for line in shown.splitlines() if "/dev/shm" in line)


def test_the_parts_of_ram_are_the_kernels_to_the_byte_and_add_up(oomph):
    command = [oomph.binary, "top", "--json-lines", "--interval", "100ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lines:
        try:
            lines.stdout.readline()
            end = time.monotonic() + 60
            while True:
                before = parts_of_ram()
                ram = json.loads(lines.stdout.readline())["machine"]["ram"]
                after = parts_of_ram()
                parts = sum(ram[name] for name in ("anonymous", "file", "shared", "kernel", "other", "free"))
                # Pages that are in swap too are counted with neither.
                assert parts == ram["total"] or meminfo()["SwapTotal"] > 0
                assert ram["total"] == meminfo()["MemTotal"]
                # What lies between two looks at a number is right.
                if all(min(before[name], after[name]) <= ram[name] <= max(before[name], after[name]) for name in before):
                    break
                assert time.monotonic() < end, (before, ram, after)
        finally:
            lines.kill()


def test_a_process_has_the_memory_that_proc_says(top, child):
    one = child("import mmap\nheld = bytearray(150 << 20)\nshared = mmap.mmap(-1, 40 << 20)\nshared.write(b'x' * (40 << 20))")
    screen = top(width=200)
    choose(screen, one.pid)
    row = row_of(screen.wait(lambda shown: row_of(shown, one.pid)), one.pid)
    known = status(one.pid)
    for name in ("VmRSS", "RssAnon", "RssFile", "RssShmem"):
        assert f" {size(known[name])} " in row, (name, known, row)
    assert known["RssAnon"] > 150 * MIB and known["RssShmem"] >= 40 * MIB
    screen.press("Enter")
    details = screen.wait("child of")
    assert f"RAM {size(known['VmRSS'])}: anonymous {size(known['RssAnon'])}" in details


def test_keys_sort_filter_and_draw_the_tree(top, child):
    parent = child(
        "import subprocess, sys\nbelow = subprocess.Popen([sys.executable, '-c', 'import time\\ntime.sleep(1000)', 'la' 'mb'])\n",
        name="sheep",
    )
    below = int(pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
    try:
        screen = top(width=220)
        screen.press("/")
        screen.type("SHEEP")
        shown = screen.wait(lambda shown: row_of(shown, parent.pid) and "/SHEEP" in shown)
        assert row_of(shown, below) is None
        # Escape clears, and the next one would end it.
        screen.press("Escape")
        screen.wait(lambda shown: "? help" in shown)
        screen.press("/")
        screen.type("lamb")
        screen.press("Enter")
        shown = screen.wait(lambda shown: row_of(shown, below) and "filter lamb" in shown)
        assert row_of(shown, parent.pid) is None
        screen.press("t")
        shown = screen.wait(lambda shown: row_of(shown, parent.pid) is not None)
        assert re.search(r"└─ .*lamb", row_of(shown, below)), shown
        screen.press("t", "Escape")
        screen.wait(lambda shown: "filter lamb" not in shown)
        # The list of columns, and the column beside.
        screen.press("s")
        screen.wait("Sort by")
        screen.press("Home", "Enter")
        shown = screen.wait("by pid")
        pids = [int(line.split()[0]) for line in shown.splitlines()[:-1] if re.match(r"\s*\d+ ", line)]
        assert pids == sorted(pids) and len(pids) > 3
        screen.press("r")
        shown = screen.wait("PID▼")
        screen.press(">")
        screen.wait("by user")
        screen.press("<")
        screen.wait("by pid")
        screen.press("?")
        screen.wait("choose a process")
        screen.resize(60, 12)
        screen.wait(lambda shown: "arrows move" in shown and "?, F1" not in shown)
        screen.press("End")
        screen.wait("?, F1")
        screen.resize(220, 40)
        screen.wait("choose a process")
        screen.press("x")
        screen.wait(lambda shown: "choose a process" not in shown)
        screen.press("+")
        screen.wait("every 500ms")
        screen.press("Space")
        screen.wait("paused")
        screen.press("Space")
        screen.wait(lambda shown: "paused" not in shown)
        screen.press("q")
        assert screen.ended() == 0
    finally:
        os.kill(below, signal.SIGKILL)


def test_every_size_of_terminal_is_drawn(top):
    screen = top(width=120, height=40)
    screen.wait("COMMAND")
    screen.resize(80, 24)
    shown = screen.wait(lambda shown: "COMMAND" in shown and len(shown.splitlines()) <= 24)
    assert all(len(line) <= 80 for line in shown.splitlines())
    screen.resize(40, 10)
    screen.wait(lambda shown: "COMMAND" in shown and "q quit" in shown)
    screen.resize(20, 5)
    screen.wait("40x10; this is 20x5")
    screen.resize(1, 1)
    screen.wait(lambda shown: shown.strip() == "o")
    screen.press("?", "Down", "Enter")
    screen.resize(200, 50)
    shown = screen.wait(lambda shown: "COMMAND" in shown and "SHARED" in shown)
    assert len(shown.splitlines()) == 50
    assert pathlib.Path(f"/proc/{screen.pid()}").exists()


COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)(?:;\d+)*m")


@pytest.mark.parametrize(
    "arguments, env, has_color",
    [([], {}, True), (["--color", "never"], {}, False), ([], {"NO_COLOR": "1"}, False)],
    ids=["plain", "never", "NO_COLOR"],
)
def test_colour_is_used_only_where_it_may_be(top, arguments, env, has_color):
    shown = top(*arguments, env=env).wait("COMMAND", "-e")
    assert bool(COLOR.search(shown)) is has_color


def test_ascii_is_all_that_is_drawn_if_asked(top, child):
    child(name="größe")
    screen = top("--ascii")
    screen.press("t")
    shown = screen.wait(lambda shown: "COMMAND" in shown and "`-" in shown)
    assert shown.isascii()


# Ending processes


def test_a_process_is_ended_only_after_a_yes(top, child):
    one = child(name="victim")
    screen = top()
    screen.press("K")
    screen.wait("choose a process first")
    choose(screen, one.pid)
    screen.press("K")
    shown = screen.wait(f"End {one.pid} (python")
    assert "victim" in shown and f"{size(status(one.pid)['VmRSS'])} in RAM" in shown
    screen.press("n")
    screen.wait(lambda shown: f"End {one.pid}" not in shown)
    assert one.poll() is None
    # What is no yes is none.
    screen.press("K")
    screen.wait(f"End {one.pid}")
    screen.press("f", "x", "Escape")
    screen.wait(lambda shown: f"End {one.pid}" not in shown)
    assert one.poll() is None
    screen.press("K")
    screen.wait(f"End {one.pid}")
    screen.press("y")
    assert one.wait(10) == -signal.SIGTERM
    screen.wait(f"{one.pid} has ended")


def test_a_process_that_will_not_end_can_be_forced(top, child):
    one = child("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)")
    screen = top()
    choose(screen, one.pid)
    screen.press("K")
    screen.wait(f"End {one.pid}")
    screen.press("y")
    screen.wait("f: force it")
    assert one.poll() is None
    screen.press("f")
    assert one.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("is_paused", [False, True], ids=["live", "paused"])
def test_a_question_says_that_its_process_has_ended_and_kills_nobody(top, child, is_paused):
    one = child(name="victim")
    screen = top()
    choose(screen, one.pid)
    if is_paused:
        screen.press("Space")
        screen.wait("paused")
    screen.press("K")
    screen.wait(f"End {one.pid}")
    one.kill()
    # It is dead before anybody fetches it.
    screen.wait(f"{one.pid} has ended meanwhile; nothing was sent")
    one.wait()
    screen.press("y", "f")
    shown = screen.wait("Esc: close")
    assert "SIGTERM" not in shown and "SIGKILL" not in shown
    screen.press("Escape")
    screen.wait(lambda shown: f"End {one.pid}" not in shown)
    # While it is paused its row is there, and who is behind it is looked up anew.
    if is_paused:
        screen.press("K")
        screen.wait(f"{one.pid} has ended")


def test_the_question_shows_the_command_line_as_it_is_now(top, tmp_path):
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; exec sleep 1000.25"
    one = subprocess.Popen(["sh", "-c", script])
    try:
        screen = top(width=200)
        choose(screen, one.pid)
        screen.press("Space")
        screen.wait("paused")
        go.touch()
        cmdline = pathlib.Path(f"/proc/{one.pid}/cmdline")
        while not cmdline.read_bytes().startswith(b"sleep"):
            time.sleep(0.02)
        screen.press("K")
        shown = screen.wait(f"End {one.pid} (sleep)")
        assert "sleep 1000.25 " in shown.split(f"End {one.pid}")[1].splitlines()[1]
    finally:
        one.kill()
        one.wait()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to be somebody else")
def test_another_users_process_is_left_and_that_is_said(terminal, oomph, child):
    one = child()
    # Not below pytest's folder, which is its user's alone.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        binary = pathlib.Path(shutil.copy(oomph.binary, folder))
        binary.chmod(0o755)
        screen = terminal(["setpriv", "--reuid", "65534", "--clear-groups", str(binary), "top"])
        screen.wait("COMMAND")
        choose(screen, one.pid)
        screen.press("K")
        screen.wait(f"End {one.pid}")
        screen.press("y")
        screen.wait("not permitted")
        assert one.poll() is None


# The terminal afterwards


@pytest.mark.parametrize("how", ["q", "C-c", "SIGTERM", "SIGINT"])
def test_the_terminal_is_given_back(terminal, oomph, tmp_path, how):
    shell = terminal(["env", "PS1=$ ", "sh"])
    shell.wait("$")
    shell.type(f"echo before; stty -a > {tmp_path}/before; {oomph.binary} top; echo code=$?; stty -a > {tmp_path}/after; echo done")
    shell.press("Enter")
    shell.wait("COMMAND")
    if how.startswith("SIG"):
        children = pathlib.Path(f"/proc/{shell.pid()}/task/{shell.pid()}/children").read_text().split()
        os.kill(int(children[0]), signal.Signals[how])
    else:
        shell.press(how)
    shown = shell.wait(lambda shown: "code=" in shown.replace("code=$", "") and shown.count("done") > 1)
    expected = {"SIGTERM": 143, "SIGINT": 130}.get(how, 0)
    assert f"code={expected}" in shown
    # What was there before is there again, and nothing of the screen is left.
    assert "before" in shown and "COMMAND" not in shown
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
    assert shell.tmux("display-message", "-p", "#{cursor_flag} #{alternate_on}").split() == ["1", "0"]


@pytest.mark.parametrize("how", ["C-z", "SIGTSTP"])
def test_it_goes_to_the_shell_and_back(terminal, oomph, how):
    shell = terminal(["env", "PS1=$ ", "bash", "--norc", "-i"])
    shell.wait("$")
    shell.type(f"{oomph.binary} top")
    shell.press("Enter")
    shell.wait("COMMAND")
    top = int(pathlib.Path(f"/proc/{shell.pid()}/task/{shell.pid()}/children").read_text())
    # Again and again: what is left behind adds up.
    for _ in range(3):
        if how == "C-z":
            shell.press(how)
        else:
            os.kill(top, signal.SIGTSTP)
        shell.wait(lambda shown: "Stopped" in shown and "COMMAND" not in shown)
        assert pathlib.Path(f"/proc/{top}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        assert shell.tmux("display-message", "-p", "#{cursor_flag} #{alternate_on}").split() == ["1", "0"]
        shell.type("clear; fg")
        shell.press("Enter")
        shell.wait("COMMAND")
    shell.press("q")
    shell.wait(lambda shown: "COMMAND" not in shown)


@pytest.mark.parametrize("how", ["C-z", "SIGTSTP"])
def test_without_a_shell_it_does_not_stop(top, how):
    screen = top()
    screen.wait("COMMAND")
    if how == "C-z":
        screen.press(how)
    else:
        os.kill(screen.pid(), signal.SIGTSTP)
    screen.press("s")
    screen.wait("Sort by")
    screen.press("Escape")
    screen.wait(lambda shown: "Sort by" not in shown and "COMMAND" in shown)
    screen.press("q")
    assert screen.ended() == 0


def test_it_ends_when_its_terminal_is_closed(top):
    screen = top()
    screen.wait("COMMAND")
    pid = screen.pid()
    screen.close()
    end = time.monotonic() + 10
    while pathlib.Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


# GPUs


def told_by_nvml(library):
    """What NVIDIA's own Python package reads from the same library."""
    program = """
import json, pynvml
pynvml.nvmlInit()
cards = []
for index in range(pynvml.nvmlDeviceGetCount()):
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    processes = {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(card)}
    cards.append(dict(name=pynvml.nvmlDeviceGetName(card), uuid=pynvml.nvmlDeviceGetUUID(card), total=memory.total, used=memory.used,
        free=memory.free, reserved=memory.reserved, busy=pynvml.nvmlDeviceGetUtilizationRates(card).gpu,
        temperature=pynvml.nvmlDeviceGetTemperature(card, 0), power=pynvml.nvmlDeviceGetPowerUsage(card), processes=processes))
print(json.dumps(cards))
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    return json.loads(subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True).stdout)


def test_cards_show_what_nvml_says_and_who_is_on_them(top, child, nvml, nvml_library):
    one, two = child(name="first"), child(name="second")
    unseen = 4_194_000
    environment = nvml(
        CARDS=f"{80 * GIB},{30 * GIB},{600 * MIB},NVIDIA A100;{24 * GIB},{6 * GIB},{300 * MIB},NVIDIA L4",
        PROCESSES=f"0,{one.pid},{20 * GIB};0,{two.pid},{10 * GIB};1,{unseen},{3 * GIB};1,{one.pid},-",
    )
    screen = top(width=200, env=environment)
    shown = screen.wait(lambda shown: "NVIDIA L4" in shown and row_of(shown, one.pid))
    reported = told_by_nvml(nvml_library)
    for index, card in enumerate(reported):
        line = next(line for line in shown.splitlines() if line.startswith(f"GPU {index} "))
        for piece in (
            f"{size(card['used'])} of {size(card['total'])}",
            f"reserved {size(card['reserved'])}",
            f"free {size(card['free'])}",
            f"busy {card['busy']} %",
            f"{card['temperature']} °C",
            f"{round(card['power'] / 1000)} W",
            card["name"],
        ):
            assert piece in line, (piece, line)
    assert size(reported[0]["processes"][str(one.pid)]) in row_of(shown, one.pid)
    # Sorted by GPU memory: the largest first.
    assert shown.index(row_of(shown, one.pid)) < shown.index(row_of(shown, two.pid)) < shown.index(row_of(shown, unseen))
    assert f"pid {unseen} (not visible from here)" in row_of(shown, unseen)
    assert "20.0 GiB (python" in shown
    # Cards say how they change.
    nvml(CARDS=f"{80 * GIB},{75 * GIB},{600 * MIB},NVIDIA A100", PROCESSES=f"0,{one.pid},{20 * GIB}")
    shown = screen.wait("75.0 GiB of 80.0 GiB")
    assert "NVIDIA L4" not in shown
    screen.wait("55.0 GiB held by no visible process")
    screen.press("g")
    screen.wait(lambda shown: "1 process  " in shown.splitlines()[-1])


@pytest.mark.parametrize("error, words", [(18, "two versions"), (9, "not loaded"), (4, "may not"), (999, "NVIDIA's library says")])
def test_a_driver_that_refuses_is_named_and_the_machine_shown(oomph, nvml, error, words):
    code, out, _ = oomph("top", "--once", env={**os.environ, **nvml(ERROR=error)})
    assert code == 0
    assert "no GPU: " in out and words in out
    assert size(meminfo()["MemTotal"]) in out


HANGING = "nvmlDeviceGetMemoryInfo_v2"


def test_a_driver_that_hangs_is_named_and_the_rest_goes_on(top, child, nvml):
    card = f"{80 * GIB},{30 * GIB},{600 * MIB},NVIDIA A100"
    screen = top(width=160, env=nvml(CARDS=card))
    screen.wait("30.0 GiB of 80.0 GiB")
    nvml(CARDS=card, HANG=HANGING)
    shown = screen.wait("the driver does not answer since")
    assert "30.0 GiB of 80.0 GiB" in shown and re.search(r"said \d+ s ago", shown)
    # A process that was started since is seen.
    choose(screen, child(name="later").pid)
    nvml(CARDS=card.replace(str(30 * GIB), str(40 * GIB)))
    shown = screen.wait("40.0 GiB of 80.0 GiB")
    assert "does not answer" not in shown and "said" not in shown
    # It ends while the driver hangs, too.
    nvml(CARDS=card, HANG=HANGING)
    screen.wait("the driver does not answer since")
    screen.press("Escape", "q")
    assert screen.ended() == 0


def test_a_driver_that_never_answers_leaves_the_rest_of_the_screen(top, nvml):
    shown = top(env=nvml(HANG=HANGING)).wait("no GPU is known: the driver has not answered for")
    assert "COMMAND" in shown and f"of {size(meminfo()['MemTotal'])}" in shown
    nvml()


def test_prometheus_hears_how_long_the_driver_is_silent(exporter, nvml):
    server = exporter(env=nvml())
    values = scraped(server.address)
    assert (values["oomph_nvml_up", frozenset()], values["oomph_nvml_age_seconds", frozenset()]) == (1, 0)
    nvml(HANG=HANGING)
    end = time.monotonic() + 20
    while (values := scraped(server.address))["oomph_nvml_up", frozenset()] == 1:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert values["oomph_nvml_age_seconds", frozenset()] >= 2
    # What stands still is not reported as if it were now; RAM is.
    assert not any(name.startswith("oomph_gpu") for name, _ in values)
    assert values["oomph_ram_total_bytes", frozenset()] == meminfo()["MemTotal"]
    nvml()
    while scraped(server.address)["oomph_nvml_up", frozenset()] == 0:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_where_others_are_hidden_the_page_says_so(oomph):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        binary = pathlib.Path(shutil.copy(oomph.binary, folder))
        binary.chmod(0o755)
        as_nobody = f"setpriv --reuid 65534 --regid 65534 --clear-groups {binary} top --once --ascii"
        asked = ["unshare", "--mount", "sh", "-c", f"mount -t proc -o hidepid=2 proc /proc && {as_nobody}"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            pytest.skip(f"needs root, to mount /proc and to be somebody else: {done.stderr}")
    assert "other users' processes cannot be seen: /proc is mounted with hidepid" in done.stdout
    assert row_of(done.stdout, 1) is None
    assert "hidepid" not in oomph("top", "--once")[1]


def test_an_unknown_user_is_told_with_where_names_come_from(oomph):
    code, out, err = oomph("top", "--once", "--user", "nobody-is-called-so")
    assert (code, out) == (2, "")
    assert '"nobody-is-called-so"' in err and "getent" in err and "give that" in err


def test_without_a_terminal_it_prints_a_page(oomph, nvml, child):
    one = child(name="--secret=hush")
    environment = {**os.environ, **nvml(PROCESSES=f"0,{one.pid},{5 * GIB}"), "COLUMNS": "120"}
    code, out, err = oomph("top", env=environment)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "5.00 GiB" in row_of(out, one.pid)
    assert all(len(line) <= 120 for line in out.splitlines())
    code, ascii_page, _ = oomph("top", "--once", "--ascii", env=environment)
    assert code == 0 and ascii_page.isascii()


# JSON


def test_lines_of_json_are_whole_and_true(oomph, nvml, nvml_library, child):
    one = child("held = bytearray(100 << 20)", name="--secret=hush")
    environment = {**os.environ, **nvml(PROCESSES=f"1,{one.pid},{GIB};0,{one.pid},-")}
    code, out, err = oomph("top", "--json-lines", "--count", 3, "--interval", "200ms", env=environment)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 3 and all(line.startswith('{"schema_version":1,') for line in lines)
    samples = [json.loads(line) for line in lines]
    assert samples[0]["time"] < samples[1]["time"] < samples[2]["time"]
    last = samples[-1]
    assert last["machine"]["ram"]["total"] == meminfo()["MemTotal"]
    process = next(process for process in last["processes"] if process["pid"] == one.pid)
    known = status(one.pid)
    assert process["resident"] == known["VmRSS"]
    assert (process["anonymous"], process["file"], process["shared"]) == (known["RssAnon"], known["RssFile"], known["RssShmem"])
    assert process["parent"] == os.getpid()
    assert sorted(process["on_gpus"], key=lambda one: one["card"]) == [{"card": 0, "bytes": None}, {"card": 1, "bytes": GIB}]
    assert process["busy"] == 0
    for card, reported in zip(last["gpus"]["cards"], told_by_nvml(nvml_library), strict=True):
        for key in ("name", "uuid", "total", "used", "free", "reserved", "busy", "temperature", "power"):
            assert card[key] == reported[key], key
    # Command lines are reported only if asked for.
    assert "hush" not in out
    _, out, _ = oomph("top", "--json-lines", "--count", 1, "--commands", env=environment)
    assert "--secret=hush" in out


def test_a_reader_that_leaves_early_is_no_failure(oomph):
    command = f"{oomph.binary} top --json-lines --interval 100ms | head -n 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("0\n", "")


# The exporter


@pytest.fixture
def exporter(oomph):
    """Starts exporters; gives their address."""
    started = []

    def start(*arguments, env=None):
        one = subprocess.Popen([oomph.binary, "top", "--prometheus", "127.0.0.1:0", *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        started.append(one)
        said = one.stderr.readline()
        address = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", said)
        assert address, said
        one.address = address[1]
        return one

    yield start
    for one in started:
        one.kill()
        one.wait()


def get(address, path="/metrics", **headers):
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def scraped(address):
    """What a client library of Prometheus reads: {(metric, labels): value}."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    text, kind = get(address)
    assert kind.startswith("application/openmetrics-text")
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for family in families for sample in family.samples}


def test_prometheus_reads_what_nvml_and_proc_say(exporter, nvml, nvml_library, child):
    one = child(name="--secret=hush")
    unseen = 4_194_000
    server = exporter(env=nvml(PROCESSES=f"0,{one.pid},{7 * GIB};0,{unseen},{GIB}"))
    values = scraped(server.address)
    user = next(dict(labels)["user"] for name, labels in values if name == "oomph_process_resident_bytes")
    for index, card in enumerate(told_by_nvml(nvml_library)):
        labels = frozenset({"card": str(index), "uuid": card["uuid"], "name": card["name"]}.items())
        for key in ("total", "used", "free", "reserved"):
            assert values[f"oomph_gpu_{key}_bytes", labels] == card[key]
        assert values["oomph_gpu_busy_ratio", labels] == card["busy"] / 100
        assert values["oomph_gpu_power_watts", labels] == card["power"] / 1000
    uuid = told_by_nvml(nvml_library)[0]["uuid"]
    name = pathlib.Path(f"/proc/{one.pid}/comm").read_text().strip()
    of_one = {"pid": str(one.pid), "user": user, "name": name}
    assert values["oomph_process_gpu_bytes", frozenset({"card": "0", "uuid": uuid, **of_one}.items())] == 7 * GIB
    nobody = {"card": "0", "uuid": uuid, "pid": str(unseen), "user": "", "name": ""}
    assert values["oomph_process_gpu_bytes", frozenset(nobody.items())] == GIB
    assert values["oomph_process_resident_bytes", frozenset(of_one.items())] == status(one.pid)["VmRSS"]
    assert values["oomph_ram_total_bytes", frozenset()] == meminfo()["MemTotal"]
    assert "hush" not in get(server.address)[0]
    # Asked again within a second, it answers the same; later it has looked again.
    first = values["oomph_sample_time_seconds", frozenset()]
    end = time.monotonic() + 10
    while scraped(server.address)["oomph_sample_time_seconds", frozenset()] == first:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert scraped(server.address)["oomph_sample_time_seconds", frozenset()] - first >= 1


def test_the_exporter_answers_its_own_page_only_and_nobody_can_block_it(exporter):
    server = exporter()
    host, port = server.address.split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(8)]
    for one in slow:
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    assert "/metrics" in get(server.address, "/")[0]
    for path, headers, code in [("/etc/passwd", {}, 404), ("/metrics", {"Host": "evil.example"}, 403)]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(server.address, path, **headers)
        assert refused.value.code == code
    assert get(server.address, "/metrics", Host=f"localhost:{port}")[0].endswith("# EOF\n")
    for one in slow:
        one.close()
    server.send_signal(signal.SIGINT)
    assert server.wait(10) == 130


def test_with_nohup_the_exporter_outlives_its_terminal(oomph, tmp_path):
    with (tmp_path / "said").open("w") as said:
        server = subprocess.Popen(["nohup", oomph.binary, "top", "--prometheus", "127.0.0.1:0"], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        end = time.monotonic() + 10
        while not (address := re.search(r"http://(\S+)/metrics", (tmp_path / "said").read_text())):
            assert time.monotonic() < end
            time.sleep(0.05)
        server.send_signal(signal.SIGHUP)
        assert get(address[1])[0].endswith("# EOF\n")
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 143
    finally:
        server.kill()
        server.wait()


def test_the_exporter_listens_at_loopback_unless_told(oomph, exporter):
    code, _, err = oomph("top", "--prometheus", "0.0.0.0:0")
    assert code == 2 and "other machines" in err and "--listen-anywhere" in err
    one = exporter()
    # The port is taken.
    code, _, err = oomph("top", "--prometheus", one.address.split(":")[1])
    assert code == 2 and f"127.0.0.1:{one.address.split(':')[1]}" in err
    code, _, err = oomph("top", "--prometheus", "nonsense")
    assert code == 2 and "127.0.0.1:9400" in err


# Programs under oomph

TRAINING = """
import sys, time, torch
model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.randn(512, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), flush=True)
sys.stdin.readline()
"""


def test_a_program_on_the_virtual_gpu_is_shown_with_what_it_says(top, oomph, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    environment = {**os.environ, "OOMPH_STATUS_FOLDER": str(tmp_path / "status")}
    command = [oomph.binary, "run", "--gpu", "t4", "--python", sys.executable, script.name]
    program = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        allocated, reserved = map(int, program.stdout.readline().split())
        screen = top("--on-gpus", width=220, env={"OOMPH_STATUS_FOLDER": str(tmp_path / "status")})
        shown = screen.wait(lambda shown: f"{size(reserved)} of " in shown and size(allocated) in shown and "train.py" in shown)
        card = next(line for line in shown.splitlines() if "(virtual)" in line)
        assert card.startswith("virt 0") and f"{size(reserved)} of " in card and "T4" in card, card
        row = next(line for line in shown.splitlines() if re.match(r"\s*\d+ .*train\.py", line))
        assert size(allocated) in row and size(reserved) in row and " 5 " in row, row
        screen.press("Down", "Enter")
        details = screen.wait("under oomph: 5 steps done")
        assert "train.py:3" in details and f"oomph explain {tmp_path}/train.oomph" in details
    finally:
        program.communicate("\n", timeout=60)
    assert program.returncode == 0


RECORDED = """
import os
import numpy as np
kept = np.ones(200 << 17)
def worker():
    kept = np.ones(100 << 17)
    os.read(0, 1)
# A child has its parent's file open too, and writes its own.
if os.fork() == 0:
    worker()
    os._exit(0)
print("ready", flush=True)
os.read(0, 1)
os.wait()
"""


def recorded_ram(oomph, **options):
    """What lines of JSON say of processes whose RAM is recorded, by the name of their recording."""
    code, out, err = oomph("top", "--json-lines", "--count", 1, "--commands", **options)
    assert (code, err) == (0, "")
    return {pathlib.Path(one["ram"]["recording"]).name: one for one in json.loads(out)["processes"] if one["ram"]}


def test_recorded_ram_is_shown_by_line_while_it_is_recorded(top, oomph, exporter, tmp_path):
    (tmp_path / "load.py").write_text(RECORDED)
    command = [oomph.binary, "run", "--ram", "--python", sys.executable, "load.py"]
    program = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline() == "ready\n"
        end = time.monotonic() + 30
        while len(found := recorded_ram(oomph)) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        ours = {name: one for name, one in found.items() if name.startswith("load-ram")}
        parent = ours["load-ram.oomph"]
        child = ours[f"load-ram-{next(one['pid'] for one in ours.values() if one is not parent)}.oomph"]
        assert child["parent"] == parent["pid"] and len(ours) == 2, ours
        for one, line, held in ((parent, 4, 200 * MIB), (child, 6, 100 * MIB)):
            ram = one["ram"]
            largest = ram["lines"][0]
            assert largest["place"].startswith(f"load.py:{line} ") and 0 <= largest["bytes"] - held < A_SAMPLE, ram
            assert largest["error"] < A_SAMPLE
            assert sum(place["bytes"] for place in ram["lines"]) <= ram["asked"] < held + 100 * MIB
        # The child has the parent's array, but has not asked for it.
        assert child["ram"]["asked"] < 200 * MIB < child["resident"]
        screen = top(width=160)
        choose(screen, parent["pid"])
        screen.press("Enter")
        details = screen.wait("RAM is recorded: ")
        assert re.search(r" 200 MiB +\d+ %  load\.py:4 <module>", details), details
        assert f"oomph explain {tmp_path}/load-ram.oomph" in details
        assert size(parent["ram"]["asked"]) in row_of(details, parent["pid"])
        code, page, _ = oomph("top", "--once")
        assert code == 0
        assert re.search(rf"\n{child['pid']} python.*\nRAM is recorded: .*\noomph explain .*-{child['pid']}\.oomph\n +100 MiB +\d+ %  load\.py:6 worker", page), page
        metrics, _ = get(exporter().address)
        assert f'oomph_process_asked_bytes{{pid="{parent["pid"]}"' in metrics
    finally:
        program.communicate("\n\n", timeout=60)
    assert program.returncode == 0
    assert not [name for name in recorded_ram(oomph) if name.startswith("load-ram")]


def test_a_part_that_a_program_records_itself_is_shown_and_then_gone(oomph, tmp_path):
    script = tmp_path / "part.py"
    script.write_text(
        "import sys\nimport numpy as np\nimport oomph\n"
        "for name in ('one', 'two'):\n    with oomph.record('part.oomph', ram=True, quiet=True):\n"
        "        kept = np.ones((64 if name == 'one' else 96) << 17)\n        print(name, flush=True)\n        sys.stdin.readline()\n"
        "    print('over', flush=True)\n    sys.stdin.readline()\n"
    )
    environment = {**os.environ, "OOMPH_COMMAND": str(oomph.binary), "PYTHONPATH": str(ROOT / "python")}
    program = subprocess.Popen([sys.executable, script.name], cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for name, held in (("one", 64 * MIB), ("two", 96 * MIB)):
            assert program.stdout.readline() == f"{name}\n"
            ram = recorded_ram(oomph)["part-ram.oomph"]["ram"]
            assert ram["lines"][0]["place"] == "part.py:6 <module>" and 0 <= ram["lines"][0]["bytes"] - held < A_SAMPLE, ram
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "over\n"
            assert "part-ram.oomph" not in recorded_ram(oomph)
            program.stdin.write("\n")
            program.stdin.flush()
    finally:
        program.communicate(timeout=60)
    assert program.returncode == 0
