"""Fetches the CUDA build of a PyTorch that is installed without: its wheel alone, from the package index.

Run by the command with the interpreter that the wheel is for, by its path: nothing else of the package is imported, and nothing but the standard library is
needed, so that it works where there is no pip. Answers are lines of JSON. What is asked of the user, and where the files go, is the command's.
"""

import hashlib
import html.parser
import json
import os
import pathlib
import re
import ssl
import sys
import sysconfig
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile

PYPI = "https://pypi.org/simple"
CUDA = "torch/lib/libtorch_cuda.so"
# Programs that test PyTorch, and libraries for linking: nothing that runs needs them.
NOT_NEEDED = re.compile(r"torch/(test/.*|share/.*|lib/.*\.a|bin/(?!torch_shm_manager).*)")


class FetchError(Exception):
    """In words, for the user."""


def indexes():
    """The user's index, as pip and uv are told it, and PyPI: an index of builds without CUDA has no other."""
    named = [os.environ.get(name) for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")]
    named.append(_in_settings_of_pip())
    first = next((url for url in named if url), PYPI).rstrip("/")
    return [first] if first == PYPI else [first, PYPI]


def _in_settings_of_pip():
    import configparser

    home = pathlib.Path.home()
    config = pathlib.Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [pathlib.Path(sys.prefix) / "pip.conf", config / "pip" / "pip.conf", home / ".pip" / "pip.conf", pathlib.Path("/etc/pip.conf")]
    if "PIP_CONFIG_FILE" in os.environ:
        files.insert(0, pathlib.Path(os.environ["PIP_CONFIG_FILE"]))
    for file in files:
        settings = configparser.RawConfigParser()
        try:
            settings.read(file)
            return settings.get("global", "index-url")
        except (configparser.Error, OSError, UnicodeError):
            continue
    return None


def _open(url, accept="*/*"):
    certificates = next((os.environ[name] for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE") if os.environ.get(name)), None)
    context = ssl.create_default_context(cafile=certificates)
    if certificates is None:
        try:
            import certifi

            context.load_verify_locations(certifi.where())
        except ImportError:
            pass
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("https", "http"):
        raise FetchError(f"{parts.scheme}: only http and https are fetched from")
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "oomph"})
    if parts.username:
        import base64

        words = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        host = parts.hostname + (f":{parts.port}" if parts.port else "")
        request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=host)), headers=dict(request.headers))
        request.add_header("Authorization", "Basic " + base64.b64encode(words.encode()).decode())
    return urllib.request.urlopen(request, timeout=60, context=context if parts.scheme == "https" else None)


class _Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.found.append(href)


def _files(index):
    """Name, address, SHA-256 and size, if it is said, of each file of the project."""
    page = f"{index}/torch/"
    with _open(page, "application/vnd.pypi.simple.v1+json, text/html;q=0.5") as answer:
        text, kind, place = answer.read(), answer.headers.get_content_type(), answer.geturl()
    if kind.endswith("json"):
        for file in json.loads(text)["files"]:
            yield file["filename"], urllib.parse.urljoin(place, file["url"]), file.get("hashes", {}).get("sha256"), file.get("size")
        return
    links = _Links()
    links.feed(text.decode("utf-8", "replace"))
    for link in links.found:
        url, _, fragment = urllib.parse.urljoin(place, link).partition("#")
        name = urllib.parse.unquote(url.rsplit("/", 1)[-1])
        yield name, url, fragment[len("sha256=") :] if fragment.startswith("sha256=") else None, None


def python_tag():
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"cp{sys.version_info.major}{sys.version_info.minor}", f"cp{sys.version_info.major}{sys.version_info.minor}{threads}"


def find(version):
    """The wheel of this version, for this interpreter, on the first index that has it."""
    wanted = re.compile(rf"torch-{re.escape(version)}-{'-'.join(python_tag())}-(many)?linux\w*_x86_64\.whl")
    problems = []
    for index in indexes():
        shown = urllib.parse.urlsplit(index).hostname or index
        try:
            for name, url, digest, size in _files(index):
                if wanted.fullmatch(name):
                    if not digest:
                        problems.append(f"{shown} says no checksum of {name}")
                        continue
                    return {"name": name, "url": url, "sha256": digest, "size": size or _size(url), "index": shown}
            problems.append(f"{shown} has no wheel of torch {version} for Python {sys.version_info.major}.{sys.version_info.minor} on Linux x86-64")
        except (OSError, ValueError, KeyError) as error:
            problems.append(f"{shown}: {getattr(error, 'reason', error)}")
    raise FetchError("; ".join(problems))


def _size(url):
    with _open(url) as answer:
        return int(answer.headers.get("Content-Length") or 0)


def get(url, digest, folder):
    """Fetches the wheel, checks it, and unpacks what runs into `site`."""
    folder = pathlib.Path(folder)
    wheel, done, told = folder / "torch.whl", 0, 0.0
    seen = hashlib.sha256()
    with _open(url) as answer, open(wheel, "wb") as file:
        of = int(answer.headers.get("Content-Length") or 0)
        while part := answer.read(1 << 20):
            file.write(part)
            seen.update(part)
            done += len(part)
            if time.monotonic() - told > 0.2:
                told = time.monotonic()
                say({"done": done, "of": of})
    if of and done != of:
        raise FetchError(f"the download broke off after {done:,} of {of:,} bytes")
    if seen.hexdigest() != digest:
        raise FetchError("what was fetched is not what the index says: its SHA-256 is another")
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if not NOT_NEEDED.fullmatch(name)]
            if CUDA not in names:
                raise FetchError(f"{url.rsplit('/', 1)[-1]} is no build with CUDA: it has no {CUDA}")
            archive.extractall(folder / "site", names)
    except zipfile.BadZipFile as error:
        raise FetchError(f"the wheel cannot be unpacked: {error}") from None
    manager = folder / "site" / "torch" / "bin" / "torch_shm_manager"
    if manager.exists():
        # A zip file's permissions are not taken over.
        manager.chmod(0o755)
    wheel.unlink()
    say({"fetched": done})


def say(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(words):
    try:
        if words[0] == "find":
            say(find(*words[1:]))
        else:
            get(*words[1:])
    except FetchError as error:
        say({"error": str(error)})
    except urllib.error.URLError as error:
        # The host alone: an address may have a password in it.
        say({"error": f"{urllib.parse.urlsplit(words[1]).hostname}: {getattr(error, 'reason', error)}"})
    except OSError as error:
        say({"error": str(error)})


if __name__ == "__main__":
    main(sys.argv[1:])
