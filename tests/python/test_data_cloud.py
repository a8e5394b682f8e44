"""Object storage that fails as networks do: a real S3 server behind a proxy that breaks, stalls and refuses. No row is lost or repeated."""

import functools
import http.server
import json
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import threading
import time

import boto3
import pyarrow
import pyarrow.parquet
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = 30_000
BUDGET = 16 << 20


def words(row):
    return f'with "quotes", and\na line, {row}' if row % 7 == 0 else f"row {row} " + "x" * (row % 50)


@pytest.fixture(scope="session")
def streamed():
    """Streams locations; gives the rows, a list of cells each."""
    subprocess.run(["cargo", "build", "--quiet", "-p", "oomph-data", "--example", "stream_rows"], cwd=ROOT, check=True, timeout=600)

    def run(*locations, fails=False, **environment):
        command = [ROOT / "target/debug/examples/stream_rows", "1000", str(BUDGET), *locations]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
        if fails:
            assert done.returncode != 0 and "panicked" not in done.stderr
            return done.stderr
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def expected():
    """What `stream_rows` prints for the rows below."""
    return "".join(f"{row}\t{row / 4}\t{words(row)}\n" for row in range(ROWS))


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """The same rows in every format."""
    folder = tmp_path_factory.mktemp("objects")
    with open(folder / "rows.csv", "w", newline="") as file:
        file.write("number,quarter,words\n")
        for row in range(ROWS):
            text = words(row).replace('"', '""')
            file.write(f'{row},{row / 4},"{text}"\n')
    with open(folder / "rows.jsonl", "w") as file:
        for row in range(ROWS):
            file.write(json.dumps({"number": row, "quarter": row / 4, "words": words(row)}) + "\n")
    table = pyarrow.table({"number": range(ROWS), "quarter": [row / 4 for row in range(ROWS)], "words": [words(row) for row in range(ROWS)]})
    pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=7_000, compression="none")
    return folder


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def s3(files):
    """moto's server with the files in a bucket; gives its port."""
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < deadline and server.poll() is None, "moto's server does not start"
            time.sleep(0.1)
        client = boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id="someone", aws_secret_access_key="secret", region_name="us-east-1"
        )
        client.create_bucket(Bucket="data")
        for file in files.iterdir():
            client.put_object(Bucket="data", Key=f"some/folder/{file.name}", Body=file.read_bytes())
        yield port
    finally:
        server.kill()
        server.wait()


class Proxy:
    """Passes connections on, and breaks most of them: in the middle of an answer, before it, or by saying 503. One answer stands still."""

    def __init__(self, port, seed, most):
        self.port, self.random, self.most = port, random.Random(seed), most
        self.breaks = self.refusals = self.stalls = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, self.random.random(), self.random.randrange(5_000, self.most)), daemon=True).start()

    def _serve(self, client, fate, most):
        try:
            if fate < 0.15:
                client.recv(1 << 16)
                self.refusals += 1
                client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                client.close()
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
            passed = 0
            while chunk := server.recv(1 << 14):
                if passed + len(chunk) > most and fate < 0.9:
                    client.sendall(chunk[: most - passed])
                    if fate < 0.25 and not self.stalls:
                        self.stalls += 1
                        time.sleep(6)
                    self.breaks += 1
                    # Half of them with a reset, which throws away what has not arrived yet.
                    if fate < 0.5:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                client.sendall(chunk)
                passed += len(chunk)
            client.close()
            server.close()
        except OSError:
            client.close()

    @staticmethod
    def _pass(source, target):
        try:
            while chunk := source.recv(1 << 14):
                target.sendall(chunk)
        except OSError:
            pass


def environment(host, port):
    """How a person points oomph at a server of their own."""
    return {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "a-secret-that-nobody-sees",
        "AWS_REGION": "us-east-1",
    }


# Parquet is read in smaller parts than text, so it breaks sooner.
@pytest.mark.parametrize("name, most", [("rows.csv", 700_000), ("rows.jsonl", 700_000), ("rows.parquet", 120_000)])
def test_no_row_is_lost_or_repeated_over_a_connection_that_breaks(streamed, s3, name, most):
    proxy = Proxy(s3, name, most)
    try:
        assert streamed(f"s3://data/some/folder/{name}", **environment(*proxy.address)) == expected()
    finally:
        proxy.close()
    assert proxy.breaks > 0 and proxy.refusals > 0, (proxy.breaks, proxy.refusals, proxy.stalls)


def test_patterns_and_prefixes_are_listed_by_the_server(streamed, s3):
    assert streamed("s3://data/some/*/rows.p*", **environment("127.0.0.1", s3)) == expected()
    assert "matches nothing" in streamed("s3://data/some/*.npy", fails=True, **environment("127.0.0.1", s3))


def test_what_is_not_there_is_said_without_secrets(streamed, s3):
    said = streamed("s3://data/nothing.csv", fails=True, **environment("127.0.0.1", s3))
    assert "s3://data/nothing.csv" in said and "no such object" in said and "secret" not in said


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A web server that gives ranges, or not; and no HEAD, as for an address that is signed for GET."""

    gives_ranges = True
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.send_error(403)

    def do_GET(self):
        path = pathlib.Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        body, status = path.read_bytes(), 200
        size, wanted = len(body), self.headers.get("Range")
        if wanted and self.gives_ranges:
            begin, end = wanted.removeprefix("bytes=").split("-")
            begin, end = int(begin), min(int(end), size - 1)
            body, status = body[begin : end + 1], 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize("gives_ranges", [True, False])
def test_a_plain_web_server_will_do(streamed, files, gives_ranges):
    handler = functools.partial(type("Handler", (Ranges,), {"gives_ranges": gives_ranges}), directory=files)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        for name in ("rows.csv", "rows.parquet"):
            assert streamed(f"{root}/{name}?signature=a-secret") == expected()
        said = streamed(f"{root}/nothing.csv?signature=a-secret", fails=True)
        assert "no such object" in said and "a-secret" not in said
        server.shutdown()
