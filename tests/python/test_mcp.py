"""`oomph mcp`, with the protocol's own client library: every tool is listed and called, its schema holds for what it answers, and that is what the verb prints.
What a client would not send (garbage, a cancellation at a chosen moment, an end in the middle) is sent by hand, line by line."""

import asyncio
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jsonschema
import mcp
import pytest
from conftest import COMMAND, FIXTURES

PLAIN, DIED = "plain.pickle.xz", "fragment_oom.pickle.xz"
READING = {"explain", "replay", "tune", "diff", "doctor"}

TRAINS = """
import sys
import torch

size = int(sys.argv[1])
model = torch.nn.Linear(size, size).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, size, device="cuda")).sum().backward()
    optimizer.step()
"""

# Leaves its number where it can be found, and waits.
WAITS = """
import os, pathlib, time
pathlib.Path("started.part").write_text(str(os.getpid()))
os.rename("started.part", "started")
time.sleep(600)
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    for name in (PLAIN, DIED):
        shutil.copy(FIXTURES / "h200" / name, folder)
    (folder / "train.py").write_text(TRAINS)
    (folder / "wait.py").write_text(WAITS)
    (tmp_path / "secret.pickle.xz").write_bytes((folder / PLAIN).read_bytes())
    (folder / "link.pickle.xz").symlink_to(tmp_path / "secret.pickle.xz")
    return folder


def asked(project, ask, *options):
    """What comes of asking a server that reads below the project, with the client library."""

    async def main():
        arguments = ["mcp", "--python", sys.executable, *options]
        server = mcp.StdioServerParameters(command=COMMAND, args=arguments, cwd=project, env=dict(os.environ))
        async with mcp.Client(server) as client:
            return await ask(client)

    return asyncio.run(asyncio.wait_for(main(), 60))


def printed(project, *arguments):
    done = subprocess.run([COMMAND, *arguments, "--format", "json"], cwd=project, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)


def text(result):
    return result.content[0].text


def test_every_tool_is_listed_with_its_options_and_what_it_does_besides(project):
    async def ask(client):
        return client.instructions, (await client.list_tools()).tools

    instructions, tools = asked(project, ask)
    tools = {tool.name: tool for tool in tools}
    assert set(tools) == READING | {"predict"}
    assert "Start with `explain`" in instructions and "started" not in instructions and f"below {project.resolve()}" in instructions
    assert "Here `predict` is refused" in instructions and "--allow-run" in tools["predict"].description
    for name, tool in tools.items():
        hints, reads = tool.annotations, name in READING
        assert (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint) == (reads, not reads, reads, not reads), name
        assert tool.title == hints.title and tool.description.startswith(tool.title)
        assert "Exits with" not in tool.description and "stdin" not in json.dumps(tool.input_schema)
        for schema in (tool.input_schema, tool.output_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
        assert all(option["description"] for option in tool.input_schema["properties"].values())
        assert tool.input_schema["additionalProperties"] is False
    takes = {name: list(tool.input_schema["properties"]) for name, tool in tools.items()}
    assert takes["explain"] == ["files", "lines", "stacks"] and takes["doctor"] == ["all"]
    assert tools["explain"].input_schema["required"] == ["files"] and tools["diff"].input_schema["required"] == ["before", "after"]
    # Neither another interpreter, nor a file to write over, nor a module from anywhere.
    assert not {"python", "force", "module", "fix", "format"} & set(takes["predict"])
    options = tools["replay"].input_schema["properties"]
    assert options["allocator"]["enum"] == ["torch", "bfc", "packed"] and options["allocator"]["default"] == "torch"
    assert "t4" in options["gpu"]["examples"] and options["patience"] == {
        "type": "integer",
        "minimum": 0,
        "default": 10,
        "description": "How long to look for a packing, in seconds",
    }
    assert tools["tune"].input_schema["properties"]["try"]["items"] == {"type": "string"}


CALLS = [
    ("explain", {"files": [PLAIN]}, [PLAIN]),
    ("explain", {"files": [DIED, PLAIN], "lines": 3, "stacks": True}, [DIED, PLAIN]),
    ("replay", {"file": DIED, "conf": "expandable_segments:True", "memory": "15GiB"}, [DIED, "--conf", "expandable_segments:True", "--memory", "15GiB"]),
    ("tune", {"file": PLAIN, "gpu": "t4", "try": ["max_split_size_mb:96"]}, [PLAIN, "--gpu", "t4", "--try", "max_split_size_mb:96"]),
    ("diff", {"before": PLAIN, "after": DIED}, [PLAIN, DIED]),
    ("doctor", {}, ["--python", sys.executable]),
]


def test_each_tool_that_reads_answers_with_what_its_verb_prints(project):
    async def ask(client):
        schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        return schemas, [await client.call_tool(name, arguments) for name, arguments, _ in CALLS]

    schemas, results = asked(project, ask)
    assert {name for name, *_ in CALLS} == READING
    for (name, _, typed), result in zip(CALLS, results, strict=True):
        assert not result.is_error, result.content
        document, wanted = result.structured_content, printed(project, name, *typed)
        check = jsonschema.Draft202012Validator(schemas[name])
        check.validate(document)
        # It says something: a document that lacks a key, or has another kind of value under it, is none.
        for key in document:
            assert not check.is_valid({other: value for other, value in document.items() if other != key}), (name, key)
        assert not check.is_valid(document | {"schema_version": 0})
        if name == "doctor":
            # The machine goes on meanwhile.
            same = ("schema_version", "oomph", "python", "settings", "limits", "surroundings")
            assert [document[key] for key in same] == [wanted[key] for key in same] and document.keys() == wanted.keys()
        else:
            assert document == wanted, name
    explained, several = results[0], results[1]
    assert text(explained).startswith(PLAIN) and str(project) not in text(explained)
    assert DIED in text(several) and several.structured_content["worst"]["file"] == DIED


def test_what_goes_wrong_is_said_as_the_command_says_it(project):
    (project / "notes.txt").write_text("no recording")
    (project / "-v").write_text("no recording either")
    os.mkfifo(project / "pipe")
    outside = str(project.parent / "secret.pickle.xz")
    wrong = [
        ("explain", {"files": ["missing.pickle"]}, "missing.pickle: No such file"),
        ("explain", {"files": ["notes.txt"]}, "hint: make a snapshot with"),
        ("explain", {"files": []}, "required"),
        ("explain", {}, "required"),
        ("explain", {"files": ["-v"]}, "./-v: "),
        ("explain", {"files": ["-"]}, "the server's own input is not read"),
        ("explain", {"files": [""]}, "the path is empty"),
        ("explain", {"files": ["pipe"]}, "pipe: this is no file"),
        ("explain", {"files": [outside]}, f"this lies outside of {project.resolve()}"),
        ("explain", {"files": ["../secret.pickle.xz"]}, "this lies outside of"),
        ("explain", {"files": ["link.pickle.xz"]}, "hint: to let oomph read it, start the server with --root"),
        ("explain", {"files": ["/etc/passwd"]}, "/etc/passwd: this lies outside of"),
        ("explain", {"files": [{"path": PLAIN}]}, "is not a string"),
        ("explain", {"files": [PLAIN], "fix": True}, 'explain takes no "fix", only files, lines, stacks'),
        ("explain", {"files": [PLAIN], "lines": 10**30}, "lines: 1e+30 is not a whole number"),
        ("explain", {"files": [PLAIN], "lines": -1}, "'--lines <N>'"),
        ("explain", {"files": [PLAIN], "stacks": "yes"}, 'stacks: "yes" is neither true nor false'),
        ("replay", {"file": PLAIN, "memory": "much"}, "'much'"),
        ("replay", {"file": PLAIN, "gpu": "t5"}, 'there is no card "t5" in the catalogue'),
        ("replay", {"file": PLAIN, "conf": "expandable_segment:True"}, "hint: "),
        ("replay", {"file": PLAIN, "device": 7}, "there is no device 7"),
        ("replay", {"file": PLAIN, "memory": "1GiB", "gpu": "t4"}, "cannot be used with"),
        ("tune", {"file": PLAIN, "python": "/bin/sh"}, 'tune takes no "python"'),
        ("predict", {"script": ["train.py", "64"], "gpu": "t4"}, "start the server with --allow-run"),
    ]

    async def ask(client):
        results = [await client.call_tool(name, arguments) for name, arguments, _ in wrong]
        return results, await client.call_tool("explain", {"files": [PLAIN, "missing.pickle"]})

    results, half = asked(project, ask)
    for (name, arguments, words), result in zip(wrong, results, strict=True):
        assert result.is_error and len(result.content) == 1 and result.structured_content is None, (name, arguments)
        assert words in text(result) and "Usage" not in text(result), (name, arguments, text(result))
    # One bad file does not lose the others.
    assert not half.is_error and half.structured_content["file"] == PLAIN
    assert half.content[1].text.startswith("missing.pickle: No such file")


def test_folders_are_named_and_relative_paths_begin_at_the_first(project, tmp_path):
    async def ask(client):
        paths = [PLAIN, str(tmp_path / "more" / PLAIN), str(tmp_path / "secret.pickle.xz")]
        return [await client.call_tool("explain", {"files": [path]}) for path in paths]

    (tmp_path / "more").mkdir()
    shutil.copy(project / PLAIN, tmp_path / "more")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    results = asked(elsewhere, ask, "--root", "../project", "--root", "../more")
    assert [result.is_error for result in results] == [False, False, True]
    assert results[0].structured_content["file"] == PLAIN
    refused = subprocess.run([COMMAND, "mcp"], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 2 and "hint: name the folder that may be read: oomph mcp --root" in refused.stderr


def test_a_script_is_predicted_where_that_is_allowed(project):
    told = []

    async def tell(progress, total, message):
        told.append((progress, total, message))

    async def ask(client):
        schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        call = {"script": ["train.py", "64"], "gpu": "t4", "until": "steps"}
        return schemas["predict"], [
            await client.call_tool("predict", call, progress_callback=tell),
            await client.call_tool("predict", {"script": ["../secret.pickle.xz"], "gpu": "t4"}),
            await client.call_tool("predict", {"script": ["train.py"], "gpu": "t4", "output": "../out.oomph"}),
            await client.call_tool("predict", {"script": ["train.py"]}),
            set(os.listdir(project)),
            await client.call_tool("predict", call | {"output": "kept.oomph"}),
            await client.call_tool("explain", {"files": ["kept.oomph"]}),
        ]

    before = set(os.listdir(project))
    schema, (result, outside, output, no_card, after, kept, explained) = asked(project, ask, "--allow-run")
    assert not result.is_error, result.content
    document = result.structured_content
    jsonschema.validate(document, schema, jsonschema.Draft202012Validator)
    typed = ["--gpu", "t4", "--until", "steps", "--no-recording", "--python", sys.executable]
    typed = ["predict", *typed, "--format", "json", "train.py", "64"]
    alone = subprocess.run([COMMAND, *typed], cwd=project, capture_output=True, text=True, timeout=60)
    assert document == json.loads(alone.stdout)
    assert document["fits"] is True and document["program"] == "train.py 64" and "fits" in text(result)
    # Without being asked for it, nothing is written.
    assert after == before and set(os.listdir(project)) == before | {"kept.oomph"}
    assert kept.structured_content == document | {"recording": "kept.oomph"}
    assert explained.structured_content["devices"][0]["peak"]["allocated"] == document["peak"]["allocated"]
    progress = [progress for progress, *_ in told]
    assert progress and progress == sorted(set(progress))
    assert [one.is_error for one in (outside, output, no_card)] == [True] * 3
    assert "this lies outside of" in text(outside) and "../out.oomph: this lies outside of" in text(output)
    assert text(no_card).startswith("which card?")


class Server:
    """A server that is spoken to line by line."""

    def __init__(self, project, *options):
        arguments = [COMMAND, "mcp", "--python", sys.executable, *options]
        self.process = subprocess.Popen(arguments, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.project = project

    def send(self, line):
        self.process.stdin.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
        self.process.stdin.flush()

    def ask(self, number, method, **parameters):
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters})

    def tell(self, method, **parameters):
        self.send({"jsonrpc": "2.0", "method": method, "params": parameters})

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def begin(self):
        self.ask(0, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"})
        assert self.answer()["result"]["serverInfo"]["name"] == "oomph"
        self.tell("notifications/initialized")

    def waiting_script(self, number):
        """Starts a prediction that waits, and gives the number of the script's process."""
        self.ask(number, "tools/call", name="predict", arguments={"script": ["wait.py"], "gpu": "t4"})
        started = self.project / "started"
        until = time.monotonic() + 30
        while not started.exists() and time.monotonic() < until:
            time.sleep(0.02)
        number = int(started.read_text())
        started.unlink()
        return number


@contextlib.contextmanager
def served(project, *options):
    server = Server(project, *options)
    try:
        server.begin()
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        for stream in (server.process.stdin, server.process.stdout, server.process.stderr):
            stream.close()


def is_alive(process):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def is_gone(process):
    until = time.monotonic() + 15
    while is_alive(process) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_alive(process)


def test_garbage_is_passed_over_and_an_end_is_an_end(project):
    with served(project) as server:
        for line in (b"garbage", b"\xff\xfe\x00", b"", b"{", b"[" * 5000, b'{"jsonrpc": "2.0", "id": 1', b"\x00" * 1000, b"x" * (17 << 20)):
            server.send(line)
        server.send({"jsonrpc": "2.0", "id": 5, "method": 7})
        server.ask(1, "no/such/method")
        server.ask(2, "tools/call", name="rm", arguments={})
        server.ask(3, "tools/call", name="explain", arguments={"files": [PLAIN]})
        answers = {}
        while 3 not in answers:
            answer = server.answer()
            answers[answer.get("id")] = answer
        assert answers[1]["error"]["code"] == -32601
        assert answers[2]["error"]["message"] == 'there is no tool "rm", only explain, replay, tune, diff, doctor, predict'
        assert answers[3]["result"]["structuredContent"]["file"] == PLAIN
        server.process.stdin.close()
        assert server.process.wait(10) == 0
        assert server.process.stdout.read() == b"" and server.process.stderr.read() == b""
    # Whoever leaves before anything was said, too.
    left = subprocess.run([COMMAND, "mcp"], cwd=project, stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    assert (left.returncode, left.stdout, left.stderr) == (0, b"", b"")


def test_a_call_that_is_cancelled_takes_its_script_with_it(project):
    with served(project, "--allow-run") as server:
        script = server.waiting_script(1)
        assert is_alive(script)
        server.tell("notifications/cancelled", requestId=1)
        assert is_gone(script)
        # Nobody waits for that answer; the next one comes.
        server.ask(2, "tools/call", name="explain", arguments={"files": [PLAIN]})
        assert server.answer()["id"] == 2
        # Nor is a script left behind where the client ends, or the server is told to.
        script = server.waiting_script(3)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(15) == 128 + signal.SIGINT and not is_alive(script)
    with served(project, "--allow-run") as server:
        script = server.waiting_script(1)
        server.process.stdin.close()
        assert server.process.wait(15) == 0 and not is_alive(script)
    with served(project) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 128 + signal.SIGINT
