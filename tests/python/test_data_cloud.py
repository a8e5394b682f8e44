"""Object storage that fails as networks do: a real S3 server, and a plain web server, behind a proxy that breaks answers. No row is lost, repeated or mixed up."""

import collections
import http.client
import http.server
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import oomph.data as data
import pyarrow as pa
import pyarrow.parquet
import pytest

ROWS = 20_000
KEY, SECRET = "AKIANOBODYSEESTHIS", "a-secret-that-nobody-sees"
# What happens to answers; "well" is the only one that arrives whole.
BREAKS = ("cut", "refuse", "reset", "hang up", "stall")


@pytest.fixture(scope="module")
def table():
    words = [f'with "quotes", and\na line, {row}' if row % 7 == 0 else f"row {row} " + "x" * (row % 50) for row in range(ROWS)]
    return pa.table({"number": range(ROWS), "quarter": [row / 4 for row in range(ROWS)], "words": words})


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    """The same rows in every format."""
    folder = tmp_path_factory.mktemp("objects")
    rows = table.to_pylist()
    with open(folder / "rows.csv", "w", newline="") as file:
        file.write("number,quarter,words\n")
        for row in rows:
            quoted = row["words"].replace('"', '""')
            file.write(f'{row["number"]},{row["quarter"]},"{quoted}"\n')
    with open(folder / "rows.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=3_000, compression="none")
    return folder


def request(port, method, path, body=None, headers=None):
    """One request to a server on this machine; gives its answer and what is in it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


# It ends when its input does: with the test, however that ends.
MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def moto(folder):
    """moto's S3 server with the files in a bucket; gives its port."""
    server = subprocess.Popen([sys.executable, "-c", MOTO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        port = int(server.stdout.readline())
        assert request(port, "PUT", "/data")[0].status == 200
        for file in folder.iterdir():
            put(port, file.name, file.read_bytes())
        yield port
    finally:
        server.kill()
        server.communicate()


def put(port, name, content):
    """Writes an object, also over one that is there, for which moto asks who it is; it believes whoever says so."""
    headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20261115/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"}
    assert request(port, "PUT", f"/data/some/folder/{name}", content, headers)[0].status == 200


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers at once, over connections that are kept, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass


class Passing(Handler):
    """Passes a request on; half of the answer, or none of it, comes back if that is its fate."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        answer, body = request(self.server.behind, self.command, self.path, headers=dict(self.headers))
        fate = self.server.fate_of(body)
        if fate == "refuse":
            return self.send_error(503, "Slow Down")
        if fate == "hang up":
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() != "connection":
                self.send_header(name, value)
        self.end_headers()
        if fate == "well":
            self.wfile.write(body)
            return
        self.wfile.write(body[: len(body) // 2])
        self.close_connection = True
        if fate == "stall":
            self.wait_until_given_up()
        elif fate == "reset":
            # Closed like this, what has not arrived yet is thrown away.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()

    def wait_until_given_up(self):
        self.connection.settimeout(30)
        try:
            self.connection.recv(1)
        except ConnectionResetError:
            pass
        except TimeoutError:
            # Nobody gave up, so it was none.
            self.server.met["stall"] = 0


class Quiet(http.server.ThreadingHTTPServer):
    """A server in threads; clients that leave early are no news. Runs within `with`."""

    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Proxy(Quiet):
    """Passes requests on to a port. Every answer of some length meets the next of `fates`, one after the other; after the last all is well.

    A fate that is a function is called while the answer is cut.
    """

    def __init__(self, behind, fates):
        self.behind, self.fates, self.lock = behind, iter(fates), threading.Lock()
        self.met = collections.Counter()
        super().__init__(Passing)

    def fate_of(self, body):
        if len(body) < 1_000:
            return "well"
        with self.lock:
            fate = next(self.fates, "well")
            if callable(fate):
                fate()
                fate = "cut"
            self.met[fate] += 1
        return fate


def each(*kinds):
    """These breaks, with answers that arrive between them."""
    return [fate for kind in kinds for fate in ("well", "well", kind)]


class Files(Handler):
    """A web server's answers: ranges, or not; and no HEAD, as for an address that is signed for GET."""

    def do_GET(self):
        path, _, query = self.path.removeprefix("/").partition("?")
        if query != f"signature={SECRET}":
            return self.send_error(403)
        if path not in self.server.files:
            return self.send_error(404)
        body, headers = self.server.files[path], dict(self.server.headers)
        size, wanted = len(body), self.headers.get("Range")
        if wanted and self.server.gives_ranges:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            body = body[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{first + len(body) - 1}/{size}"
        self.send_response_only(206 if "Content-Range" in headers else 200)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


class Web(Quiet):
    """A plain web server of files that are in memory."""

    def __init__(self, files, headers=(), gives_ranges=True):
        self.files, self.headers, self.gives_ranges = files, dict(headers), gives_ranges
        super().__init__(Files)


@pytest.fixture
def through(monkeypatch):
    """Points oomph at a server, as a person points it at one of their own."""

    def point(port, **more):
        settings = {"ENDPOINT_URL": f"http://127.0.0.1:{port}", "ALLOW_HTTP": "true", "ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "REGION": "us-east-1"}
        for name, value in {**settings, "READ_TIMEOUT": "500ms", **more}.items():
            monkeypatch.setenv(f"AWS_{name}", value)

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return point


def address(server, name):
    return f"http://127.0.0.1:{server.server_port}/{name}?signature={SECRET}"


def streamed(location, budget="8MiB", **options):
    return data.stream(location, batch=999, budget=budget, **options)


def rows(batches, table):
    """The rows of batches, with the types of the table: a cast that would change a value fails."""
    return pa.concat_tables(batch.to_pyarrow().cast(table.schema) for batch in batches).combine_chunks()


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_no_row_is_lost_or_repeated_over_s3_that_breaks(moto, table, through, name):
    with Proxy(moto, each(*BREAKS, "cut")) as proxy:
        through(proxy.server_port)
        assert rows(streamed(f"s3://data/some/folder/{name}"), table).equals(table)
    assert all(proxy.met[kind] for kind in BREAKS), proxy.met


# A stall takes seconds here, so there is one: no setting shortens the patience.
@pytest.mark.parametrize(("name", "kinds"), [("rows.csv", BREAKS), ("rows.parquet", BREAKS[:-1])])
def test_nor_over_a_plain_web_server_that_breaks(folder, table, name, kinds):
    """Without an ETag the library that makes the requests takes no answer up again: oomph does."""
    with Web({name: (folder / name).read_bytes()}) as web, Proxy(web.server_port, each(*kinds)) as proxy:
        assert rows(streamed(address(proxy, name)), table).equals(table)
    assert all(proxy.met[kind] for kind in kinds), proxy.met


def test_a_stream_that_was_left_goes_on_from_another_connection(moto, table, through):
    location = "s3://data/some/folder/rows.csv"
    with Proxy(moto, each("cut", "reset", "cut", "reset")) as proxy:
        through(proxy.server_port)
        stream = streamed(location)
        begun = list(itertools.islice(stream, 7))
        state = stream.state_dict()
        stream.close()
        assert rows(begun + list(streamed(location, resume=state)), table).equals(table)
    assert proxy.met["cut"] and proxy.met["reset"], proxy.met


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_what_is_loaded_and_profiled_is_what_the_file_is(moto, folder, table, through, name):
    with Proxy(moto, each("cut", "reset", "cut")) as proxy:
        through(proxy.server_port)
        there, here = data.load(f"s3://data/some/folder/{name}"), data.load(folder / name)
        assert there.to_pyarrow().equals(here.to_pyarrow()) and rows([there], table).equals(table)
        profiled = data.profile(f"s3://data/some/folder/{name}")
    assert profiled.location == f"s3://data/some/folder/{name}"
    assert {**profiled.as_dict(), "location": None} == {**data.profile(folder / name).as_dict(), "location": None}
    assert proxy.met["cut"] and proxy.met["reset"], proxy.met


def test_patterns_and_prefixes_are_listed_by_the_server(moto, table, through):
    through(moto)
    assert rows(streamed("s3://data/some/*/rows.p*"), table).equals(table)
    with pytest.raises(data.DataError, match=r"s3://data/some/\*\.npy: matches nothing"):
        list(streamed("s3://data/some/*.npy"))


def test_what_is_not_there_or_not_allowed_is_said_without_secrets(moto, through):
    through(moto)
    with pytest.raises(FileNotFoundError) as missing:
        list(streamed("s3://data/nothing.csv"))
    assert "s3://data/nothing.csv" in str(missing.value) and "no such object" in str(missing.value)
    with pytest.raises(FileNotFoundError) as no_bucket:
        data.load("s3://nowhere/rows.csv")
    through(moto, SKIP_SIGNATURE="true")
    with pytest.raises(PermissionError) as refused:
        data.profile("s3://data/some/folder/rows.csv")
    assert "credentials" in str(refused.value)
    with Web({}) as web, pytest.raises(FileNotFoundError) as no_file:
        list(streamed(address(web, "nothing.csv")))
    for raised in (missing, no_bucket, refused, no_file):
        said = f"{raised.value!r} {raised.value}"
        assert KEY not in said and SECRET not in said


def test_whoever_waits_for_a_server_is_told(folder, table, oomph, monkeypatch, caplog):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    content = (folder / "rows.parquet").read_bytes()
    with Web({"rows.parquet": content}) as web:
        with Proxy(web.server_port, ["refuse"] * 3) as proxy:
            place = address(proxy, "rows.parquet")
            said = f"{place.partition('?')[0]}: the server answers 503 Service Unavailable; trying again"
            code, out, error = oomph("data", "profile", place)
        # Once, from the first time on, and without the signature.
        assert (code, error, proxy.met["refuse"]) == (0, f"warning: {said}\n", 3) and "20,000 rows" in out
        with Proxy(web.server_port, ["refuse"] * 3) as proxy, caplog.at_level("WARNING", "oomph.data"):
            place = address(proxy, "rows.parquet")
            assert rows([data.load(place)], table).equals(table)
            deadline = time.monotonic() + 30
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(0.01)
            said = f"{place.partition('?')[0]}: the server answers 503 Service Unavailable; trying again"
            assert [(record.name, record.getMessage()) for record in caplog.records] == [("oomph.data", said)]


def test_whoever_has_no_credentials_is_told_so_at_once(oomph, monkeypatch):
    """What does not answer then is the server that is asked for them, not the store."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
    with subprocess.Popen([oomph.binary, "data", "profile", "s3://bucket/x.csv"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as waiting:
        said = waiting.stderr.readline()
        waiting.kill()
    assert said.startswith("warning: s3://bucket/x.csv: no credentials were found, and 127.0.0.1, which is asked for them then, does not answer (")
    assert said.endswith("; trying again; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket\n")


def test_an_object_that_changes_is_never_mixed(moto, folder, table, through):
    """Of the same size, and in the middle of an answer: only the ETag shows it."""
    first = (folder / "rows.csv").read_bytes()
    second = first.replace(b"row", b"ROW")
    with Proxy(moto, [*["well"] * 20, lambda: put(moto, "changes.csv", second)]) as proxy:
        put(moto, "changes.csv", first)
        through(proxy.server_port)
        stream, given = streamed("s3://data/some/folder/changes.csv", budget="1MiB"), []
        with pytest.raises(data.DataError, match=r"changes\.csv: has changed"):
            given.extend(stream)
        # What was given before is of the first, all of it.
        assert 0 < sum(map(len, given)) < ROWS
        assert rows(given, table).equals(table.slice(0, sum(map(len, given))))
        with pytest.raises(ValueError, match="cannot be resumed"):
            list(streamed("s3://data/some/folder/changes.csv", budget="1MiB", resume=stream.state_dict()))


def test_nor_between_the_two_passes_of_a_load(moto, folder, table, through):
    location = "s3://data/some/folder/loaded.csv"
    first = (folder / "rows.csv").read_bytes()
    put(moto, "loaded.csv", first)
    with Proxy(moto, ()) as proxy:
        through(proxy.server_port)
        assert rows([data.load(location)], table).equals(table)
    answers = proxy.met["well"]
    with Proxy(moto, [*["well"] * (answers - 1), lambda: put(moto, "loaded.csv", first.replace(b"row", b"ROW"))]) as proxy:
        through(proxy.server_port)
        with pytest.raises(data.DataError, match=r"loaded\.csv: has changed"):
            data.load(location)


@pytest.mark.parametrize("header", ["ETag", "weak ETag", "Last-Modified"])
def test_nor_is_a_file_of_a_web_server_that_does_not_look_at_if_match(folder, header):
    name, before, after = {
        "ETag": ("ETag", '"one"', '"two"'),
        "weak ETag": ("ETag", 'W/"one"', 'W/"two"'),
        "Last-Modified": ("Last-Modified", "Sun, 15 Nov 2026 00:00:00 GMT", "Sun, 15 Nov 2026 00:00:01 GMT"),
    }[header]
    with Web({"rows.csv": (folder / "rows.csv").read_bytes()}, {name: before}) as web:

        def change():
            web.files["rows.csv"] = web.files["rows.csv"].replace(b"row", b"ROW")
            web.headers[name] = after

        with Proxy(web.server_port, [*["well"] * 20, change]) as proxy:
            with pytest.raises(data.DataError, match=r"rows\.csv: has changed"):
                list(streamed(address(proxy, "rows.csv"), budget="1MiB"))


def test_a_web_server_without_ranges_is_read_whole(folder, table):
    with Web({"rows.parquet": (folder / "rows.parquet").read_bytes()}, gives_ranges=False) as web:
        assert rows(streamed(address(web, "rows.parquet")), table).equals(table)
