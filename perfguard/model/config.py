"""The configuration of a run, from `[tool.perfguard]` and the command line, validated once."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from perfguard.model.errors import UsageError

Category = Literal["new", "faster", "slower", "changed", "stale"]
LANE = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}$"  # a hardware's slug, or a target: both name folders
CATEGORIES: tuple[Category, ...] = get_args(Category)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[tool.perfguard]` of pyproject.toml."""

    baselines: str = "baselines"  # folder, relative to the root directory
    reports: str = ".perfguard"  # folder of report-<slug>.json
    device: str = "auto"  # auto, cpu, fake, cuda, cuda:1, xpu …
    observe: bool | list[str] = False  # tests without the fixture are observed: all, or those below these paths
    strict: bool = False  # cases that are not guarded fail
    base: str = ""  # branch, tag or commit whose merge base with HEAD times are compared with; "": HEAD
    pair_minutes: Annotated[float, Meta(ge=0, le=600)] = 10.0  # most time to measure base and working tree by turns
    interpreter: Literal["perfguard", "triton"] = "perfguard"  # what interprets Triton's kernels without a GPU
    targets: tuple[str, ...] = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")  # to compile kernels for
    case_seconds: Annotated[float, Meta(gt=0, le=60)] = 1.0  # most measuring time for one timed metric
    extra_seconds: Annotated[float, Meta(ge=0, le=600)] = 0.5  # of a processor, for all beside a given call
    session_minutes: Annotated[float, Meta(gt=0, le=600)] = 30.0  # limit for a fresh process
    case_minutes: Annotated[float, Meta(gt=0, le=600)] = 10.0  # limit for a case, then it is BROKEN and the run ends
    lock_minutes: Annotated[float, Meta(ge=0, le=600)] = 30.0  # longest wait for a device that another perfguard uses
    lanes: Annotated[
        list[Annotated[str, Meta(pattern=LANE)]], Meta(max_length=20)
    ] = []  # lanes that a pull request waits for
    comment: Literal["findings", "never"] = "findings"  # when a comment is created
    author: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_-]{1,100}(\[bot\])?)?$")] = (
        ""  # of our comments; "": the bot of Actions
    )


class CompareOptions(Struct, frozen=True):
    """How `perfguard compare` judges: by the base alone.

    Attributes:
        python: an interpreter, or a folder of site-packages, that the base runs with; None: this process's.
        setup: a shell command that each worktree needs first; "": none.
    """

    python: Path | None = None
    setup: str = ""


class Config(Struct, frozen=True):
    """One run's configuration. `update` is None for comparing, else the categories to write. `beside`: no record is
    looked at, and the base is asked about every case."""

    root: Path
    settings: Settings = Settings()
    measure: bool = False
    update: frozenset[Category] | None = None
    reason: str = ""
    lane: str = ""  # requested lane: a slug, or a target, for which only exact metrics are read
    session_folder: Path | None = None  # a fresh process of another run: measure, answer here, judge nothing
    device: str = ""  # named by the option; settings.device also by the configuration file
    here: Path | None = None  # where pytest was started; None: in root
    beside: CompareOptions | None = None

    def typed(self, nodeid: str) -> str:
        """A node id, which begins in root, as one types it where pytest was started."""
        if self.here is None or self.here == self.root:
            return nodeid
        file, colons, name = nodeid.partition("::")
        return Path(os.path.relpath(self.root / file, self.here)).as_posix() + colons + name

    @property
    def baselines_dir(self) -> Path:
        return self.root / self.settings.baselines

    @property
    def reports_dir(self) -> Path:
        return self.root / self.settings.reports

    @property
    def untimed(self) -> bool:
        """Whether no time is read. Such a run needs no exclusive device."""
        return self.lane == "cpu"

    @property
    def cache_dir(self) -> Path:
        """Folder for files that are slow to make. All workers share it, although their reports have separate
        folders."""
        return self.root / ".perfguard" / "cache"


def find_project(folder: Path) -> Path:
    """The project around `folder`: the nearest folder upwards with a pyproject.toml or the top of a git checkout, or
    `folder` itself."""
    folder = folder.resolve()
    above = (folder, *folder.parents)
    return next((each for each in above if (each / "pyproject.toml").is_file() or (each / ".git").exists()), folder)


def read_settings(root: Path, **overrides: Any) -> Settings:
    """`[tool.perfguard]` of `root/pyproject.toml`, with command-line values laid over it.

    Raises:
        UsageError: an unknown key, a wrong type or a value out of range.
    """
    path = root / "pyproject.toml"
    data = path.read_bytes() if path.is_file() else b""
    try:
        table: dict[str, Any] = tomllib.loads(data.decode("utf-8")).get("tool", {}).get("perfguard", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, AttributeError) as error:
        raise UsageError(f"{path}: not valid TOML ({error}); mend the file") from error
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return msgspec.convert({**table, **given}, Settings)
    except (msgspec.ValidationError, TypeError) as error:
        known = ", ".join(Settings.__struct_fields__)
        raise UsageError(f"[tool.perfguard] in {path}: {error}; known keys: {known}") from error


def parse_categories(text: str) -> frozenset[Category]:
    """`new,faster` -> {new, faster}; `all` -> every category but `stale`: removals must be requested by name.

    Raises:
        UsageError: an unknown category; the message lists the known ones.
    """
    if text.strip() == "all":
        return frozenset(CATEGORIES) - {"stale"}
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in CATEGORIES]
    if unknown or not names:
        named = ", ".join(unknown) or "nothing"
        raise UsageError(
            f"--perfguard-update={text}: {named} is no category; known: {', '.join(CATEGORIES)}, all (all but stale); "
            "before a path, write --perfguard-update=all"
        )
    return frozenset(category for category in CATEGORIES if category in names)
