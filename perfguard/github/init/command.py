"""`perfguard init`: shows what it would write as a diff, then writes it if the user agrees.

Files that a person has edited are left and reported. Repeated, the command changes nothing.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from perfguard.github.init.workflows import (
    HOSTED,
    Lanes,
    find_source,
    guard_workflow,
    installed_here,
    lane_workflows,
    lanes_of,
    measure_workflow,
    with_ignored,
    with_lanes,
    with_owners,
)
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import LANE, find_project, read_settings
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.units import counted
from perfguard.session.pairing.worktrees import Repository, find_repository

_LABEL = re.compile(r"[\w.:-]{1,100}")  # The labels of a runner.
_OWNER = re.compile(r"@[\w-]+(/[\w.-]+)?|[^@\s]+@[^@\s]+")  # A person, a team, or an address of mail.
_CODEOWNERS = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")  # GitHub takes the first that exists.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard init`."""
    parser.description = (
        "Sets this repository up: [tool.perfguard], .gitignore and the workflows of GitHub Actions. Shows every change "
        "first. Lines and workflows that a person has written are left; repeated, it changes nothing."
    )
    add = parser.add_argument
    lane = (
        "a lane and the labels of its runner; may be repeated (default: the lanes of [tool.perfguard], otherwise cpu)"
    )
    add("--lane", dest="lanes", action="append", default=[], metavar="LANE[=LABEL,…]", help=lane)
    owner = "who reviews the baselines, for CODEOWNERS; may be repeated"
    add("--owner", dest="owners", action="append", default=[], metavar="@NAME", help=owner)
    source = "the commit of perfguard that CI installs (default: that of this installation)"
    add("--source", default="", metavar="OWNER/NAME@COMMIT", help=source)
    add("--yes", action="store_true", help="write without asking")


def run(options: argparse.Namespace) -> int:
    """Return the exit status, one of `perfguard.ExitStatus`.

    Raises:
        PerfguardError: no repository or no git, a wrong option or a wrong setting.
    """
    project = find_project(Path.cwd())
    repository = find_repository(project)
    found = Project(project, repository)
    plan, steps = make_plan(found, options)
    if found.folder:
        print(f"perfguard init: {found.folder}/ is set up, with a workflow at the top of {repository.root}", end="\n\n")
    for edit in plan.edits:
        print("\n".join(edit.shown(repository.root)), end="\n\n")
    for line in plan.left:
        print(line, end="\n\n")
    if not plan.edits:
        print("perfguard init: nothing to change" + (" but what is left above" if plan.left else ""))
        return int(ExitStatus.PASSED)
    if not (options.yes or _agreed(len(plan.edits))):
        print("perfguard init: nothing was written; write it: perfguard init --yes, with the same options")
        return int(ExitStatus.PASSED)
    for edit in plan.edits:
        write_atomically(edit.path.resolve(), edit.after.encode("utf-8", "surrogateescape"))
    print(f"perfguard init: wrote {counted(len(plan.edits), 'file')}. Next:")
    print("\n".join(f"  {number}. {step}" for number, step in enumerate(steps, 1)))
    return int(ExitStatus.PASSED)


def _agreed(count: int) -> bool:
    """Whether the user says yes; no if nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return input(f"Write {counted(count, 'file')}? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False


@dataclass(frozen=True)
class Edit:
    """A file before and after; `before` is empty for a new file."""

    path: Path
    before: str
    after: str

    def shown(self, root: Path) -> Iterator[str]:
        """The lines of a unified diff."""
        name = self.path.relative_to(root).as_posix()
        old = f"a/{name}" if self.before else "/dev/null"
        lines = (self.before.splitlines(), self.after.splitlines())
        for line in difflib.unified_diff(*lines, old, f"b/{name}", lineterm=""):
            yield line.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Project:
    """The folder with pyproject.toml, in its repository."""

    path: Path
    repository: Repository

    @property
    def folder(self) -> str:
        """The path from the top of the repository; "" if it is the top."""
        path = self.path.resolve().relative_to(self.repository.root.resolve()).as_posix()
        return "" if path == "." else path

    @property
    def branch(self) -> str:
        """The default branch: the remote's, otherwise the one that is checked out."""
        for name in ("refs/remotes/origin/HEAD", "HEAD"):
            try:
                return self.repository.git("symbolic-ref", "--short", name).removeprefix("origin/")
            except UsageError:  # No remote, or a detached HEAD.
                continue
        return "main"


class Plan:
    """The files to write, and those that are not edited.

    Attributes:
        left: a line for each file that is not edited, with the reason.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._edits: list[Edit] = []
        self.left: list[str] = []

    @property
    def edits(self) -> list[Edit]:
        return [edit for edit in self._edits if edit.before != edit.after]

    def set_lanes(self, lanes: Sequence[str]) -> None:
        """Write the lanes into `[tool.perfguard]`."""
        path = self._project.path / "pyproject.toml"
        text = read(path)
        if list(read_settings(self._project.path).lanes) == list(lanes):
            return
        edited = with_lanes(text, lanes)
        if edited is None:
            self.left.append(f"left: {path}: [tool.perfguard] has a form that is not edited; set lanes = {list(lanes)}")
        else:
            self._edits.append(Edit(path, text, edited))

    def ignore(self) -> None:
        """Let git ignore the files that runs leave behind."""
        root, folder = self._project.repository.root.resolve(), self._project.path.resolve()
        above = [read(each / ".gitignore") for each in folder.parents if each.is_relative_to(root)]
        text = read(folder / ".gitignore")
        self._edits.append(Edit(folder / ".gitignore", text, with_ignored(text, above)))

    def put_workflow(self, name: str, text: str, *, known: str = "") -> None:
        """Write a workflow. An existing one is left unless it is `known`, the text that an earlier `init` wrote."""
        path = self._project.repository.root / ".github" / "workflows" / name
        before = read(path)
        edit = Edit(path, before, text)
        if before in ("", known):
            self._edits.append(edit)
        elif before.replace("\r\n", "\n") != text:
            difference = "\n".join(edit.shown(self._project.repository.root))
            self.left.append(
                f"left: .github/workflows/{name} differs; rename it, or take over what it lacks:\n{difference}"
            )

    def set_owners(self, owners: Sequence[str]) -> None:
        """Write the owners who review the baselines."""
        root, folder = self._project.repository.root, PurePosixPath(self._project.folder)
        baselines = read_settings(self._project.path).baselines
        path = next((root / name for name in _CODEOWNERS if (root / name).is_file()), root / _CODEOWNERS[0])
        text = read(path)
        edited = with_owners(text, str(folder / baselines), str(folder / "pyproject.toml"), owners)
        self._edits.append(Edit(path, text, edited))


def make_plan(project: Project, options: argparse.Namespace) -> tuple[Plan, list[str]]:
    """The plan, and the next steps of a person once it is carried out.

    Raises:
        UsageError: a wrong option or setting.
    """
    settings = read_settings(project.path)
    workflows = project.repository.root / ".github" / "workflows"
    known = {} if project.folder else lanes_of(read(workflows / "measure.yml"))
    lanes = {lane: known.get(lane) or _labels(lane) for lane in settings.lanes}
    lanes = {**lanes, **known, **dict(map(_lane, options.lanes))} or {"cpu": HOSTED}
    source, installed, branch = find_source(options.source), installed_here(project.path), project.branch
    plan = Plan(project)
    plan.set_lanes(list(lanes))
    plan.ignore()
    if set(lanes) == {"cpu"} and not known:
        name, workflow = guard_workflow(source, installed, project.folder, settings.reports)
        plan.put_workflow(name, workflow)
        check = f"the check `{name.removesuffix('.yml')}`"
    else:
        if project.folder:
            raise UsageError(
                f"{project.folder}: `perfguard comment` reads the settings and baselines at the top of a repository, "
                "so lanes with times are set up there; in a folder leave --lane out, and the lane cpu is guarded"
            )
        plan.put_workflow("measure.yml", measure_workflow(lanes, branch), known=measure_workflow(known, branch))
        for name, workflow in lane_workflows(source, installed, settings.baselines).items():
            plan.put_workflow(name, workflow)
        if (workflows / "guard.yml").is_file():
            plan.left.append("left: .github/workflows/guard.yml guards the lane cpu beside measure.yml; git rm it")
        check = "the status `perfguard`"
    if owners := _owners(options.owners):
        plan.set_owners(owners)
    return plan, list(_steps(lanes, settings.baselines, check, owners))


def read(path: Path) -> str:
    """The text of a file with its line ends; "" if there is none."""
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else ""


def _lane(given: str) -> tuple[str, Sequence[str]]:
    """The name of a lane, and the labels of its runner.

    Raises:
        UsageError: one of them has a form that no lane or label has.
    """
    lane, equals, labels = given.partition("=")
    found = labels.split(",") if equals else _labels(lane)
    if not re.fullmatch(LANE, lane) or not all(map(_LABEL.fullmatch, found)):
        raise UsageError(f"--lane {given}: not LANE or LANE=LABEL,LABEL; for example nvidia-h200=self-hosted,gpu")
    return lane, found


def _labels(lane: str) -> Sequence[str]:
    return HOSTED if lane == "cpu" else ("self-hosted", "gpu", lane)


def _owners(given: Sequence[str]) -> Sequence[str]:
    """The owners as they are given.

    Raises:
        UsageError: one is no name of GitHub and no address.
    """
    for owner in given:
        if not _OWNER.fullmatch(owner):
            raise UsageError(f"--owner {owner}: no @person, @organisation/team or address of mail; name one")
    return given


def _steps(lanes: Lanes, baselines: str, check: str, owners: Sequence[str]) -> Iterator[str]:
    """The next steps of a person."""
    yield "Commit what was written, with a guarded test (docs/start.md)."
    for lane, labels in lanes.items():
        if lane == "cpu":
            yield "Record the lane cpu: pytest --perfguard --perfguard-lane=cpu --perfguard-update=new"
        else:
            yield (
                f"Register a runner with the labels {', '.join(labels)}, and record {lane} on its machine: pytest "
                f"--perfguard --perfguard-update"
            )
    yield f"Commit {baselines}/ and push."
    yield f"In the branch rules, require {check}" + (" and the review of code owners." if owners else ".")
    if not owners:
        yield "Name who may let a baseline get worse: perfguard init --owner @NAME"
