"""`perfguard init` in repositories of every form: what it writes, what it leaves, and that it writes only once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.checkouts import git
from perfguard.cli import main
from perfguard.github.init import command, workflows
from perfguard.github.init.workflows import find_source, with_lanes
from perfguard.model.config import read_settings
from perfguard.model.errors import ExitStatus, UsageError

COMMIT = f"{0xABC:040x}"
SOURCE = f"--source=OWNER/perfguard@{COMMIT}"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, in which commands run."""
    git(tmp_path, "init", "--quiet", "--initial-branch=trunk")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*options: str) -> int:
    return main(["init", SOURCE, *options])


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    relative = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {name: text for name, text in relative.items() if not name.startswith(".git/")}


def loaded(folder: Path, name: str) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((folder / ".github" / "workflows" / name).read_text())
    return made


def test_it_shows_then_writes_then_changes_nothing(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init() == 0
    shown = capsys.readouterr().out
    assert "nothing was written; write it: perfguard init --yes" in shown
    assert files(repository) == {}
    assert init("--yes") == 0
    written = files(repository)
    assert set(written) == {"pyproject.toml", ".gitignore", ".github/workflows/guard.yml"}
    for text in written.values():
        assert [line for line in text.decode().splitlines() if f"+{line}" not in shown.splitlines()] == []
    assert written["pyproject.toml"] == b'[tool.perfguard]\nlanes = ["cpu"]\n'
    assert written[".gitignore"] == b".perfguard/\n__pycache__/\n"
    out = capsys.readouterr().out
    assert "wrote 3 files" in out
    assert "require the check `guard`." in out
    assert init("--yes") == 0
    assert capsys.readouterr().out == "perfguard init: nothing to change\n"
    assert files(repository) == written


def test_a_question_at_a_terminal(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(question: str) -> str:
        asked.append(question)
        return next(answers)

    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", answer)
    answers = iter(["", "y"])
    assert init() == 0
    assert files(repository) == {}
    assert init() == 0
    assert len(files(repository)) == 3
    assert asked == ["Write 3 files? [y/N] "] * 2


@pytest.mark.parametrize(
    ("extras", "package"),
    [("", "-e ."), ("docs = []\ntests = []\ndev = []\n", '-e ".[tests]"')],
    ids=["plain", "extra"],
)
def test_the_job_installs_what_is_here(extras: str, package: str, repository: Path) -> None:
    project = '[project]\nname = "ours"\nversion = "1"\n[project.optional-dependencies]\n'
    (repository / "pyproject.toml").write_text(project + extras)
    (repository / "requirements.txt").write_text("einops\n")
    assert init("--yes") == 0
    (job,) = loaded(repository, "guard.yml")["jobs"].values()
    python, install = job["steps"][2]["with"]["python-version"], job["steps"][3]["run"]
    assert python == "{}.{}".format(*sys.version_info)
    assert f"torch=={metadata.version('torch')} triton=={metadata.version('triton')}" in install
    build = metadata.version("torch").partition("+")[2]
    assert ("--extra-index-url" in install) == bool(build)
    assert not build or f"/whl/{build} " in f"{install} "
    assert (
        f'"perfguard @ git+https://github.com/OWNER/perfguard@{COMMIT}" pytest-xdist {package} -r requirements.txt'
        in install
    )


TABLE = "[tool.perfguard]"
PROJECT = '# ours\n[project]\nname = "a"  # kept\n\n[tool.other]\nx = [\n  1,\n]\n'


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "not ended"])
@pytest.mark.parametrize(
    "text",
    [
        PROJECT,
        f"{PROJECT}{TABLE} # ours\nstrict = true\n\n[tool.last]\ny = 1\n",
        f'{PROJECT}[ tool . perfguard ]\nlanes = ["cpu"]  # one list\nstrict = true\n',
        f"{TABLE}\n",
        f'text = """\n{TABLE}\n"""\n',
    ],
    ids=["no table", "table", "lanes", "empty table", "in a string"],
)
def test_settings_keep_every_line(text: str, last: bool, end: str) -> None:
    text = (text if last else text.removesuffix("\n")).replace("\n", end)
    edited = with_lanes(text, ["nvidia-h200", "cpu"])
    assert edited is not None
    lines, kept = edited.splitlines(keepends=True), text.splitlines(keepends=True)
    end = end if "\n" in text else "\n"  # a single line without an end shows no other
    assert {line[-len(end) :] for line in lines[:-1]} <= {end}
    for line in kept[:-1] if not last else kept:
        assert line in lines or line.startswith("lanes = ")
    before = tomllib.loads(text)
    assert tomllib.loads(edited) == {
        **before,
        "tool": {
            **before.get("tool", {}),
            "perfguard": {**before.get("tool", {}).get("perfguard", {}), "lanes": ["nvidia-h200", "cpu"]},
        },
    }
    assert ("# one list" in edited) == ("# one list" in text)
    assert with_lanes(edited, ["nvidia-h200", "cpu"]) == edited


@pytest.mark.parametrize(
    "text",
    [
        "tool.perfguard.strict = true\n",
        "tool = {perfguard = {strict = true}}\n",
        "[tool]\nperfguard = {}\n",
        f'{TABLE}\nlanes = [\n  "cpu",\n]\n',
        f"{TABLE}\nlanes = ['cpu']\n",
        f'text = """\n{TABLE}\n"""\n[tool."perfguard"]\nstrict = true\n',
        f'text = """\nlanes = ["cpu"]\n"""\n{TABLE}\nlanes = ["cpu"]\n',
    ],
)
def test_a_form_of_the_table_that_is_not_known_is_left(
    text: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert with_lanes(text, ["nvidia-h200", "cpu"]) is None
    (repository / "pyproject.toml").write_text(text)
    assert init("--lane=nvidia-h200", "--lane=cpu", "--yes") == 0
    assert (repository / "pyproject.toml").read_text() == text
    out = capsys.readouterr().out
    assert "[tool.perfguard] has a form that is not edited; set lanes = [" in out


def test_other_files_keep_every_line(repository: Path) -> None:
    (repository / ".gitignore").write_bytes(b"build/\r\n/.perfguard\r\n\xff*.so")
    (repository / "CODEOWNERS").write_text("* @everybody\n/.github/ @infrastructure\n")
    assert init("--owner=@ours/kernels", "--owner=@me", "--yes") == 0
    assert (repository / ".gitignore").read_bytes() == b"build/\r\n/.perfguard\r\n\xff*.so\r\n__pycache__/\r\n"
    owners = "* @everybody\n/.github/ @infrastructure\n/baselines/ @ours/kernels @me\n"
    assert (repository / "CODEOWNERS").read_text() == owners
    assert not (repository / ".github" / "CODEOWNERS").exists()


def test_new_owners_review_what_decides(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--owner=@me", "--yes") == 0
    owners = repository / ".github" / "CODEOWNERS"
    assert owners.read_text() == "/baselines/ @me\n/.github/ @me\n/pyproject.toml @me\n"
    assert "the review of code owners" in capsys.readouterr().out
    assert init("--owner=@me", "--yes") == 0
    assert capsys.readouterr().out == "perfguard init: nothing to change\n"


def test_folders_that_the_settings_name(repository: Path) -> None:
    settings = '[tool.perfguard]\nbaselines = "perf/records"\nreports = "out"\n'
    (repository / "pyproject.toml").write_text(settings)
    assert init("--owner=@me", "--yes") == 0
    assert loaded(repository, "guard.yml")["jobs"]["guard"]["steps"][6]["run"].startswith(
        "perfguard report out/report-*"
    )
    assert (repository / ".github" / "CODEOWNERS").read_text().startswith("/perf/records/ @me\n")
    assert init("--lane=nvidia-h200", "--yes") == 0
    uploaded = loaded(repository, "lane.yml")["jobs"]["lane"]["steps"][-1]["with"]
    assert uploaded["path"] == "perf/records/${{ inputs.lane }}/"


def test_lanes_and_their_runners(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--yes") == 0  # a GPU is added later
    guard = files(repository)[".github/workflows/guard.yml"]
    capsys.readouterr()
    assert init("--lane=nvidia-h100-80gb=self-hosted,gpu", "--yes") == 0
    out = capsys.readouterr().out
    assert "guard.yml guards the lane cpu beside measure.yml; git rm it" in out
    assert "labels self-hosted, gpu, and record nvidia-h100-80gb on its machine: pytest --perfguard" in out
    assert "require the status `perfguard`" in out
    assert read_settings(repository).lanes == ["cpu", "nvidia-h100-80gb"]
    measure = loaded(repository, "measure.yml")
    assert measure[True]["push"] == {"branches": ["trunk"]}
    h100 = {"lane": "nvidia-h100-80gb", "runner": ["self-hosted", "gpu"]}
    rows = [{"lane": "cpu", "runner": ["ubuntu-24.04"]}, h100]
    assert measure["jobs"]["measure"]["strategy"]["matrix"]["include"] == rows
    step = loaded(repository, "comment.yml")["jobs"]["comment"]["steps"][2]
    assert step["uses"] == f"OWNER/perfguard@{COMMIT}"
    written = files(repository)
    assert written[".github/workflows/guard.yml"] == guard
    assert init("--yes") == 0  # the runners are those of measure.yml
    assert files(repository) == written
    # A further lane is written into the measure.yml that nobody has edited.
    assert init("--lane=amd-mi300x", "--yes") == 0
    now = files(repository)
    assert {name for name in now if now[name] != written[name]} == {"pyproject.toml", ".github/workflows/measure.yml"}
    rows.append({"lane": "amd-mi300x", "runner": ["self-hosted", "gpu", "amd-mi300x"]})
    assert loaded(repository, "measure.yml")["jobs"]["measure"]["strategy"]["matrix"]["include"] == rows


def test_a_workflow_that_differs_is_left_and_shown(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--lane=nvidia-h200", "--yes") == 0
    folder = repository / ".github" / "workflows"
    for name in ("measure.yml", "lane.yml"):
        (folder / name).write_text((folder / name).read_text() + "# ours\n")
    before = files(repository)
    capsys.readouterr()
    assert init("--lane=cpu", "--yes") == 0
    out = capsys.readouterr().out
    for name in ("measure.yml", "lane.yml"):
        assert f"left: .github/workflows/{name} differs; rename it, or take over what it lacks:" in out
    assert "-# ours" in out
    assert '+          - {lane: "cpu", runner: ["ubuntu-24.04"]}' in out
    now = files(repository)
    assert {name for name in now if now[name] != before[name]} == {"pyproject.toml"}


def test_a_folder_of_a_monorepo(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = repository / "packages" / "fast kernels"
    folder.mkdir(parents=True)
    assert init("--lane=nvidia-h200", "--yes") == 0  # the lanes at the top are not those of a folder
    capsys.readouterr()
    (folder / "pyproject.toml").touch()
    (repository / ".gitignore").write_text("__pycache__/\n")
    monkeypatch.chdir(folder)
    assert init("--owner=@me", "--yes") == 0
    assert capsys.readouterr().out.startswith(
        "perfguard init: packages/fast kernels/ is set up, with a workflow at the top"
    )
    workflow = loaded(repository, "guard-packages-fast-kernels.yml")
    (job,) = workflow["jobs"].values()
    assert workflow["name"] == job["name"] == "guard-packages-fast-kernels"
    assert job["defaults"] == {"run": {"working-directory": "packages/fast kernels"}}
    tried = job["steps"][-1]["with"]  # of each project its own
    assert (tried["name"], tried["path"]) == (
        "turns-guard-packages-fast-kernels", "packages/fast kernels/.perfguard/cache/turns.json"
    )  # fmt: skip
    assert job["steps"][4]["run"] == f"perfguard resume {tried['name']}"
    assert (folder / ".gitignore").read_text() == ".perfguard/\n"
    owners = (repository / ".github" / "CODEOWNERS").read_text()
    assert owners.startswith("/packages/fast\\ kernels/baselines/ @me\n")
    written = files(repository)
    capsys.readouterr()
    assert init("--lane=nvidia-h200", "--yes") == ExitStatus.USAGE_ERROR
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "lanes with times are set up there" in told
    assert files(repository) == written


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--lane=a/b", "--lane a/b: not LANE or LANE=LABEL,LABEL"),
        ("--lane=cpu=", "--lane cpu=: not LANE or LANE=LABEL,LABEL"),
        ('--lane=x=a"b', "for example nvidia-h200=self-hosted,gpu"),
        ("--owner=kernels", "--owner kernels: no @person"),
        ("--source=OWNER/perfguard@main", "--source OWNER/perfguard@main: not OWNER/NAME@COMMIT"),
        (f"--source=perfguard@{COMMIT}", "not OWNER/NAME@COMMIT"),
    ],
)
def test_a_wrong_option_is_one_line(
    option: str, told: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(option, "--yes") == ExitStatus.USAGE_ERROR
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert files(repository) == {}


def test_outside_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert init("--yes") == ExitStatus.USAGE_ERROR
    error = capsys.readouterr().err
    assert error == (
        f"perfguard: {tmp_path}: not in a git repository, which holds base and baselines; git init && perfguard init\n"
    )
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://github.com/OWNER/perfguard", "github.com/OWNER/perfguard"),
        ("https://user:secret@github.com/OWNER/perfguard.git", "github.com/OWNER/perfguard"),
        ("git@github.com:OWNER/perfguard.git", "github.com/OWNER/perfguard"),
        ("ssh://git@ghe.example.com:22/OWNER/perf.guard/", "ghe.example.com/OWNER/perf.guard"),
    ],
)
@pytest.mark.parametrize("checkout", [True, False], ids=["folder", "address"])
def test_ci_installs_the_commit_that_is_installed_here(
    address: str, name: str, checkout: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: dict[str, Any] = {"url": address, "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
    commit = COMMIT
    if checkout:
        folder = tmp_path / "a clone"
        folder.mkdir()
        git(folder, "init", "--quiet")
        git(folder, "commit", "--quiet", "--allow-empty", "--message=first")
        git(folder, "remote", "add", "origin", address)
        noted, commit = {"url": folder.as_uri(), "dir_info": {}}, git(folder, "rev-parse", "HEAD")
    _note(tmp_path, noted, monkeypatch)
    source = find_source("")
    assert f"{source.host}/{source.action}" == f"{name}@{commit}"
    assert source.requirement() == f'"perfguard @ git+https://{name}@{commit}"'


@pytest.mark.parametrize("noted", [None, {"url": "file:///nowhere", "dir_info": {}}, {"url": "https://x/y.whl"}])
def test_an_installation_without_a_commit_is_asked_for_one(
    noted: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _note(tmp_path, noted, monkeypatch)
    with pytest.raises(UsageError, match=r"name it: perfguard init --source OWNER/perfguard@COMMIT$"):
        find_source("")


def _note(tmp_path: Path, noted: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this installation be what pip has noted in `direct_url.json`."""
    folder = tmp_path / "site" / "perfguard-1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: perfguard\nVersion: 1\n")
    if noted is not None:
        (folder / "direct_url.json").write_text(json.dumps(noted))
    monkeypatch.syspath_prepend(str(folder.parent))


def test_builds_of_torch_come_from_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0+cu130"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    index = ["--extra-index-url", "https://download.pytorch.org/whl/cu130"]
    assert workflows.installed_here(tmp_path).pins == ["torch==2.13.0+cu130", "triton", *index]
    versions["torch"] = "2.13.0+ours.1"  # which no index holds
    assert workflows.installed_here(tmp_path).pins == ["torch==2.13.0+ours.1", "triton"]


@pytest.mark.parametrize("lanes", [(), ("--lane=nvidia-h200=self-hosted,gpu", "--lane=cpu")], ids=["cpu", "both"])
def test_the_workflows_are_clean(lanes: tuple[str, ...], repository: Path) -> None:
    """To the linters that this repository's own workflows pass (scripts/check)."""
    assert init(*lanes, "--yes") == 0
    folder = repository / ".github" / "workflows"
    paths = [str(path) for path in sorted(folder.glob("*.yml"))]
    schema = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *paths]
    done = subprocess.run(schema, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    zizmor = Path(sys.executable).parent / "zizmor"
    line = [str(zizmor), "--offline", "--no-progress", "--quiet", "--strict-collection", str(repository)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in paths:  # every step of a shell is one
        for job in yaml.safe_load(Path(path).read_text())["jobs"].values():
            for step in job.get("steps", []):
                if "run" in step:
                    subprocess.run(["bash", "-n", "-c", step["run"]], check=True)


def test_no_placeholder_is_left(repository: Path) -> None:
    assert init("--lane=nvidia-h200", "--yes") == 0
    assert init("--owner=@me", "--yes") == 0
    for name, text in files(repository).items():
        assert not re.search(rb"<<\w+>>", text), name
    assert command.read(repository / "none") == ""
