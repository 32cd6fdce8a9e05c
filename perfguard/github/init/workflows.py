"""The texts that `perfguard init` writes: workflows from templates, and edits of a repository's own files, which keep
every existing line."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from perfguard.model.errors import UsageError
from perfguard.session.pairing.worktrees import NO_CODE, find_repository

HOSTED = ("ubuntu-24.04",)  # Any CPU serves the lane cpu, which times nothing.
# PyTorch's builds are marked by the part of their version behind the plus, which also names the index that holds them.
_BUILDS = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$")
_INDEX = "https://download.pytorch.org/whl/"
_EXTRAS = ("test", "tests", "testing", "dev")  # Usual names of what a project's tests need.
# A repository as --source or `git remote` names it: https, ssh, or git@host:owner/name. A password in it is left out.
_ADDRESS = re.compile(
    r"(?:(?:https?|ssh|git)://)?(?:[^@/\s]+@)?([\w-]+(?:\.[\w-]+)+)(?::\d+(?=/))?[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
_NAME = re.compile(r"[\w-]+/[\w.-]+")  # On github.com.
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ROW = re.compile(r"^ +- \{lane: (\"[^\"]*\"), runner: (\[[^\]]*\])\}$", re.MULTILINE)

IGNORED = (".perfguard/", "__pycache__/")
_HEADER = re.compile(
    r"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*perfguard[ \t]*\][ \t]*(?:#[^\r\n]*)?(?:\r?\n|\Z)", re.MULTILINE
)

Lanes = Mapping[str, Sequence[str]]  # Lane -> labels of its runner.


@dataclass(frozen=True)
class Source:
    """The commit of perfguard that CI installs.

    Attributes:
        host: the server, such as github.com.
        name: owner and repository.
        commit: the full hash.
    """

    host: str
    name: str
    commit: str

    @property
    def action(self) -> str:
        """The action of perfguard's repository, as `uses:` names it."""
        return f"{self.name}@{self.commit}"

    def requirement(self, extra: str = "") -> str:
        """The requirement for pip, quoted for a shell."""
        return f'"perfguard{extra} @ git+https://{self.host}/{self.name}@{self.commit}"'


@dataclass(frozen=True)
class Installed:
    """The packages that a job installs.

    Attributes:
        python: the minor version of Python, such as 3.12.
        pins: torch and triton at the versions that are installed here, and PyTorch's index if one is needed.
        packages: arguments of pip that install the project under guard; none if it is no package.
    """

    python: str
    pins: Sequence[str]
    packages: Sequence[str]


def find_source(given: str) -> Source:
    """The commit that `given` names (`OWNER/NAME@COMMIT`, or with the address of another server), or if it is empty the
    commit that this installation was made from.

    Raises:
        UsageError: `given` has another form, or this installation does not know its commit.
    """
    if given:
        address, _, commit = given.rpartition("@")
        source = _source(f"github.com/{address}" if _NAME.fullmatch(address) else address, commit)
        if source is None:
            raise UsageError(f"--source {given}: not OWNER/NAME@COMMIT with all 40 digits of the commit; name it so")
        return source
    source = _of_this_installation()
    if source is None:
        raise UsageError(
            "this installation does not know which commit of which repository it was made from, so that CI "
            "could install the same; name it: perfguard init --source OWNER/perfguard@COMMIT"
        )
    return source


def _of_this_installation() -> Source | None:
    """The source in pip's record of this installation: a repository and its commit, or those of a folder's checkout."""
    try:
        noted = json.loads(metadata.distribution("perfguard").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return None
    if "vcs_info" in noted:
        return _source(noted["url"], noted["vcs_info"]["commit_id"])
    folder = Path(unquote(urlsplit(noted.get("url", "")).path))
    try:
        repository = find_repository(folder) if "dir_info" in noted and folder.is_dir() else None
        if repository is None:
            return None
        return _source(repository.git("remote", "get-url", "origin"), repository.commit("HEAD") or "")
    except UsageError:
        return None


def _source(address: str, commit: str) -> Source | None:
    found = _ADDRESS.fullmatch(address)
    return Source(found[1], found[2], commit) if found and _COMMIT.fullmatch(commit) else None


def installed_here(project: Path) -> Installed:
    """The versions of this environment, and how the project is installed, by its files."""
    pins, index = [], []
    for name in ("torch", "triton"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            pins.append(name)
            continue
        pins.append(f"{name}=={version}")
        if name == "torch" and (build := _BUILDS.search(version)):
            index = ["--extra-index-url", f"{_INDEX}{build[1]}"]
    pyproject = project / "pyproject.toml"
    table = tomllib.loads(pyproject.read_text("utf-8")).get("project") if pyproject.is_file() else None
    extra = next((name for name in _EXTRAS if name in (table or {}).get("optional-dependencies", {})), None)
    packages = [f'-e ".[{extra}]"' if extra else "-e ."] if table or (project / "setup.py").is_file() else []
    if (project / "requirements.txt").is_file():
        packages.append("-r requirements.txt")
    return Installed(f"{sys.version_info.major}.{sys.version_info.minor}", [*pins, *index], packages)


def guard_workflow(
    source: Source, installed: Installed, folder: str = "", reports: str = ".perfguard"
) -> tuple[str, str]:
    """Name and text of the workflow of one hosted job.

    Args:
        folder: the project's folder in the repository; "" for the whole repository.
        reports: the folder of reports, as the settings name it.
    """
    name = f"guard-{re.sub(r'[^A-Za-z0-9_]+', '-', folder).strip('-')}" if folder else "guard"
    where = f"    defaults:\n      run:\n        working-directory: {json.dumps(folder)}\n" if folder else ""
    packages = " ".join([source.requirement(), "pytest-xdist", *installed.packages])
    turns = json.dumps("/".join(filter(None, [folder, ".perfguard/cache/turns.json"])))
    values = {"name": name, "folder": where, "python": installed.python, "pins": " ".join(installed.pins)}
    text = _filled("guard", values | {"packages": packages, "reports": shlex.quote(reports), "turns": turns})
    return f"{name}.yml", text


def lane_workflows(source: Source, installed: Installed, baselines: str = "baselines") -> dict[str, str]:
    """Name -> text of the workflows that measure one lane, and that judge and post.

    Args:
        baselines: the folder of baselines, as the settings name it.
    """
    packages = " ".join([source.requirement("[kernels]"), "pytest-xdist", *installed.packages])
    values = {
        "python": installed.python, "pins": " ".join(installed.pins), "packages": packages, "baselines": baselines,
    }  # fmt: skip
    return {"lane.yml": _filled("lane", values), "comment.yml": _filled("comment", {"action": source.action})}


def measure_workflow(lanes: Lanes, branch: str) -> str:
    """The workflow that starts the lanes.

    Args:
        branch: the default branch.
    """
    rows = [
        f"          - {{lane: {json.dumps(lane)}, runner: {json.dumps(list(labels))}}}\n"
        for lane, labels in lanes.items()
    ]
    return _filled("measure", {"lanes": "".join(rows), "branch": branch})


def lanes_of(workflow: str) -> dict[str, list[str]]:
    """The lanes that a text made by `measure_workflow` starts."""
    return {json.loads(lane): json.loads(labels) for lane, labels in _ROW.findall(workflow)}


def _filled(name: str, values: Mapping[str, str]) -> str:
    folder = files("perfguard.github.init").joinpath("templates")
    documents = "|".join(sorted(suffix.removeprefix(".") for suffix in NO_CODE))
    look = (folder / "look.yml").read_text(encoding="utf-8").replace("<<documents>>", documents)
    values = {**values, "look": look}
    return re.sub(r"<<(\w+)>>", lambda found: values[found[1]], (folder / f"{name}.yml").read_text(encoding="utf-8"))


def with_lanes(text: str, lanes: Sequence[str]) -> str | None:
    """pyproject.toml with `lanes` in `[tool.perfguard]`; None if the table has a form that is not edited.

    The edit counts only if the file then has its old content and the lanes: any line may be inside a string.
    """
    before = tomllib.loads(text)
    table = before.get("tool", {}).get("perfguard")
    line = f"lanes = {json.dumps(list(lanes))}"
    if table is None:
        edited = _appended(text, [*[""] * bool(text.strip()), "[tool.perfguard]", line])
    elif "lanes" not in table:
        header = _HEADER.search(text)
        end = header.end() if header else 0
        edited = _appended(text[:end], [line]) + text[end:]
    else:
        known = re.escape(f"lanes = {json.dumps(table['lanes'])}")
        edited = re.sub(rf"^{known}(?=[ \t]*(?:#[^\r\n]*)?\r?$)", lambda _: line, text, count=1, flags=re.MULTILINE)
    wanted: dict[str, Any] = {**before, "tool": {**before.get("tool", {})}}
    wanted["tool"]["perfguard"] = {**(table or {}), "lanes": list(lanes)}
    return edited if _reads(edited) == wanted else None


def _reads(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def with_ignored(text: str, above: Iterable[str]) -> str:
    """A .gitignore with what runs leave behind.

    Args:
        above: the texts of the .gitignore files in the folders above, which hold for this folder, too.
    """
    there = {_pattern(line) for each in (text, *above) for line in each.splitlines()}
    return _appended(text, [line for line in IGNORED if _pattern(line) not in there])


def _pattern(line: str) -> str:
    return line.strip().removeprefix("**/").strip("/")


def with_owners(text: str, baselines: str, settings: str, owners: Sequence[str]) -> str:
    """A CODEOWNERS in which `owners` review the baselines. A new file also names what decides how they are judged.

    In an existing file the last line that matches a path counts, so further lines would take paths from their owners.

    Args:
        baselines, settings: the folder and the file, from the top of the repository.
    """
    paths = [f"/{baselines}/", *["/.github/", f"/{settings}"] * (not text)]
    paths = [path.replace(" ", "\\ ") for path in paths]
    there = {_pattern(re.split(r"(?<!\\)\s", line.strip())[0]) for line in text.splitlines()}
    return _appended(text, [f"{path} {' '.join(owners)}" for path in paths if _pattern(path) not in there])


def _appended(text: str, lines: Sequence[str]) -> str:
    """`text` with further lines, which end as its first one does. A last line without an end gets one."""
    end = "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"
    begun = end if lines and text and not text.endswith("\n") else ""
    return text + begun + "".join(f"{line}{end}" for line in lines)
