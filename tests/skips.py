"""A plugin for the repository's tests: lists skips by reason, and fails a run that skips more than skips.toml allows.

`scripts/test` loads it (`-p tests.skips`). The limits hold for every part of the tests, since fewer tests skip less,
and on every machine: a reason that depends on the hardware has the limit of the machine where most tests give it.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

LIMITS = Path(__file__).with_name("skips.toml")


@functools.cache
def _pattern(reason: str) -> re.Pattern[str]:
    return re.compile(re.escape(reason).replace(r"\*", ".*"), re.DOTALL)


class Skips:
    """The skips of one run beside the limits.

    Args:
        reports: of each skipped test, or of a module that is skipped as a whole.
        limits: by reason, for each file the most tests that may give it; `*` stands for anything in both.
    """

    def __init__(
        self, reports: list[pytest.TestReport | pytest.CollectReport], limits: dict[str, dict[str, int]]
    ) -> None:
        self.reasons: Counter[str] = Counter()
        tests: dict[tuple[str, str], list[str]] = defaultdict(list)
        for report in reports:
            assert isinstance(report.longrepr, tuple | list)
            text = str(report.longrepr[2]).removeprefix("Skipped: ")
            reason = next((listed for listed in limits if _pattern(listed).fullmatch(text)), text)
            self.reasons[reason] += 1
            file = report.nodeid.partition("::")[0]
            files = next((listed for listed in limits.get(reason, ()) if fnmatchcase(file, listed)), file)
            tests[reason, files].append(report.nodeid)
        self.new = [
            f"new skips in {files}: {len(found)} of at most {most} × {reason}: {', '.join(sorted(found))}"
            for (reason, files), found in tests.items()
            if len(found) > (most := limits.get(reason, {}).get(files, 0))
        ]

    def lines(self) -> Iterator[str]:
        yield f"skips: {self.reasons.total()}"
        for reason, count in self.reasons.most_common():
            yield f"{count:7} × {reason}"


_SKIPS = pytest.StashKey[Skips]()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker of pytest-xdist, whose controller counts
        return
    limits = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    skips = session.config.stash[_SKIPS] = Skips(reporter.stats.get("skipped", []), limits)
    if skips.new and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """Print below pytest's own summaries, right above its closing line."""
    yield
    skips = config.stash[_SKIPS]
    for line in skips.lines():
        terminalreporter.line(line)
    for line in skips.new:
        terminalreporter.line(line, red=True)
    if skips.new:
        terminalreporter.line("FAILED: let these tests run, or raise their limits in tests/skips.toml", red=True)
