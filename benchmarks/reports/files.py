"""Reads the reports, and writes the two versions of each."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

CASES = Path(__file__).parent / "cases"
CORRECT = "correct"
KINDS = (
    "state beside the result",
    "modes of a call",
    "equal sizes",
    "scalars at neutral defaults",
    "large finite inputs",
    "sizes and integers",
    "thresholds",
    "fake implementation",
    "compilations over sizes",
    "dtypes",
    "integers that agree",
    "cost on hard inputs",
    "addresses and grids",
    "near an epsilon",
    "layouts",
    "masked lanes",
    "values",
    "equal values",
    "masks",
    "text options",
    "tuning options",
    "unmarked integers",
    "multiples",
    "numbers of dimensions",
    "out of bounds",
    "aliases",
    "infinities",
    "options that are None",
    "broadcasts",
    "sizes of zero",
    "two options at once",
    "parameters at their start",
    "ranges of integers",
    "large integers",
    "second derivatives",
    "schemas",
    "recompilations",
    "cost of a call",
    CORRECT,
)
_TEST, _SHOWS = "# ---- test ----\n", "# ---- shows ----\n"
_BAD = re.compile(r"^(?P<indent> *)(?P<good>\S.*?)?(?: *)# bad:(?P<bad>.*)\n", re.MULTILINE)
_OURS = re.compile(r"^(?:from benchmarks|from perfguard|import pytest).*\n", re.MULTILINE)
_IMPORT = re.compile(r"^(?:import|from) .*\n", re.MULTILINE)


@dataclass(frozen=True)
class Report:
    """One file. `words` is a regular expression."""

    id: str
    title: str
    kind: str
    origin: str
    shows: str
    words: str
    text: str  # behind the docstring; as it stands in the file

    @property
    def is_correct(self) -> bool:
        return self.kind == CORRECT

    @property
    def has_two_versions(self) -> bool:
        return "# bad:" in self.text

    def whole(self, *, bad: bool) -> str:
        """The text of one version."""
        return _BAD.sub(_faulty if bad else _sound, self.text)

    def files(self, *, bad: bool) -> dict[str, str]:
        """What its user has: a kernel and a test."""
        kernel, _, rest = self.whole(bad=bad).partition(_TEST)
        imports = "".join(line for line in _IMPORT.findall(kernel) if not line.startswith("from benchmarks"))
        test = f"{imports}from kernel import *\n\n\n{rest.partition(_SHOWS)[0].strip()}\n"
        return {"kernel.py": f'"""{self.title}"""\n\n{_OURS.sub("", kernel).strip()}\n', "test_kernel.py": test}

    def loaded(self, folder: Path, *, bad: bool) -> ModuleType:
        """One version as a module. Triton wants its source in a file."""
        name = f"{'bad' if bad else 'good'}_{self.id}"
        path = folder / f"{name}.py"
        path.write_text(self.whole(bad=bad), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def problem(self, folder: Path) -> str:
        """Why `shows` does not tell the two versions apart; empty if it does. That of sound code alone has to be
        right."""
        sound = _difference(self.loaded(folder, bad=False))
        if sound:
            return f"the sound version is wrong: {sound}"
        faulty = self.has_two_versions and _difference(self.loaded(folder, bad=True))
        if self.is_correct:
            return f"another sound version is wrong: {faulty}" if faulty else ""
        return "" if faulty else "the faulty version is right"


def _sound(found: re.Match[str]) -> str:
    return f"{found['indent']}{found['good']}\n" if found["good"] else ""


def _faulty(found: re.Match[str]) -> str:
    return f"{found['indent']}{found['bad'].strip()}\n" if found["bad"].strip() else ""


def _difference(module: ModuleType) -> str:
    """How what the code gives differs from what it should give."""
    torch.manual_seed(0)
    try:
        got, want = module.shows()
    except Exception as error:  # a fault of the report may be that it raises
        return f"{type(error).__name__}: {error}"
    if not isinstance(got, torch.Tensor):
        return "" if got == want else f"{got}, not {want}"
    try:  # a rounding of float16 is the coarsest that a report leans on
        torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-4, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


def read(path: Path) -> Report:
    """Raises:
    ValueError: the file has not the form that `benchmarks.reports` describes.
    """
    head, _, text = path.read_text(encoding="utf-8").removeprefix('"""').partition('\n"""\n')
    title, *rest = filter(None, head.splitlines())
    given = dict(line.split(": ", 1) for line in rest if ": " in line)
    if given.keys() != {"kind", "origin", "shows", "words"}:
        raise ValueError(f"{path.name}: has {', '.join(given)}; needs kind, origin, shows and words")
    if given["kind"] not in KINDS or _TEST not in text or _SHOWS not in text:
        raise ValueError(f"{path.name}: kind {given['kind']!r} has no row, or a part is missing")
    return Report(path.stem.partition("_")[0], title, text=text, **given)


def reports(only: Sequence[str] = ()) -> list[Report]:
    """All, or those of these ids.

    Raises:
        ValueError: an id that no file has.
    """
    found = {report.id: report for report in map(read, sorted(CASES.glob("*.py")))}
    unknown = sorted(set(only) - found.keys())
    if unknown:
        raise ValueError(f"--only {' '.join(unknown)}: no such report; there are {' '.join(found)}")
    return [found[each] for each in only or found]
