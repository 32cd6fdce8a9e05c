"""The configuration of a run, from `[tool.perfguard]` and the command line, validated once."""

from __future__ import annotations

import contextlib
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from perfguard.model.errors import UsageError

Category = Literal["new", "faster", "slower", "changed", "stale"]
SETTINGS_FILE = "pyproject.toml"
LANE = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}$"  # A hardware's slug or a target; both name folders.
CATEGORIES: tuple[Category, ...] = get_args(Category)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[tool.perfguard]` of pyproject.toml."""

    baselines: str = "baselines"  # The folder, relative to the root directory.
    reports: str = ".perfguard"  # The folder of report-<slug>.json.
    device: str = "auto"  # One of auto, cpu, fake, cuda, cuda:1, xpu …
    observe: bool | list[str] = False  # Observes tests without the fixture: all, or those below these paths.
    strict: bool = False  # Cases that are not guarded fail.
    base: str = ""  # A branch, tag or commit; times are compared with its merge base with HEAD. "" is HEAD.
    pair_minutes: Annotated[float, Meta(ge=0, le=600)] = 10.0  # The limit for process pairs.
    targets: tuple[str, ...] = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")  # Kernels are compiled for these.
    case_seconds: Annotated[float, Meta(gt=0, le=60)] = 1.0  # The most measuring time for one timed metric.
    extra_seconds: Annotated[float, Meta(ge=0, le=600)] = 0.5  # Processor time for all calls beside a given one.
    session_minutes: Annotated[float, Meta(gt=0, le=600)] = 30.0  # The limit for a fresh process.
    case_minutes: Annotated[float, Meta(gt=0, le=600)] = 10.0  # Beyond it a case is BROKEN, and the run ends.
    lock_minutes: Annotated[float, Meta(ge=0, le=600)] = 30.0  # The longest wait for a device in use.
    lanes: Annotated[
        list[Annotated[str, Meta(pattern=LANE)]], Meta(max_length=20)
    ] = []  # A pull request waits for these lanes.
    comment: Literal["findings", "never"] = "findings"  # A comment is created for findings or never.


class CompareOptions(Struct, frozen=True):
    """Options of `perfguard compare`, which judges by the base alone.

    Attributes:
        python: the interpreter, or a folder of site-packages, for the base; None: that of this process.
        setup: a shell command that runs first in each worktree; "": none.
    """

    python: Path | None = None
    setup: str = ""


class Config(Struct, frozen=True):
    """The configuration of one run. `update` holds the categories to write; None if the run compares. With `beside`,
    the run reads no records, and asks the base about every case."""

    root: Path
    settings: Settings = Settings()
    measure: bool = False
    update: frozenset[Category] | None = None
    reason: str = ""
    lane: str = ""  # The requested lane: a slug, or a target, for which only exact metrics are read.
    session_folder: Path | None = None  # A fresh process of another run writes its answer here, and does not judge.
    device: str = ""  # The device that the option names; settings.device may come from the configuration file.
    here: Path | None = None  # The folder in which pytest was started; None for root.
    beside: CompareOptions | None = None

    def typed(self, nodeid: str) -> str:
        """A node id, which is relative to root, relative to the folder in which pytest was started."""
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
        """Whether the run reads no times, so that it needs no exclusive device."""
        return self.lane == "cpu"

    @property
    def cache_dir(self) -> Path:
        """The folder for files that are slow to make. All workers share it, unlike the folders of their reports."""
        return self.root / ".perfguard" / "cache"


def find_project(folder: Path) -> Path:
    """The project that contains `folder`: the nearest folder upwards with a pyproject.toml or .git, otherwise `folder`
    itself."""
    folder = folder.resolve()
    above = (folder, *folder.parents)
    return next((each for each in above if (each / SETTINGS_FILE).is_file() or (each / ".git").exists()), folder)


def settings_above(path: Path) -> Path | None:
    """The nearest folder above `path` whose pyproject.toml has settings of perfguard; None without one."""
    for folder in path.parents:
        with contextlib.suppress(OSError):
            if b"[tool.perfguard]" in (folder / "pyproject.toml").read_bytes():
                return folder
    return None


def read_settings(root: Path, **overrides: Any) -> Settings:
    """`[tool.perfguard]` of `root/pyproject.toml`, overridden by command-line values.

    Raises:
        UsageError: a key is unknown, or a value is of a wrong type or out of range.
    """
    path = root / SETTINGS_FILE
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
        UsageError: a category is unknown; the message lists the known ones.
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
