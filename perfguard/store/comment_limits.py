"""What `perfguard comment` reads at most of reports and baselines, which a measuring run checks before it measures.

That job reads files that untrusted code may have written. Its limits follow the baselines of the merge base, which were
reviewed: a change may double them. The constants bound what a change may bring where the base has little.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfguard.model.config import Config
from perfguard.model.records import Baseline, Case

#: Cases of one lane. Reading, judging and showing twice as many took 140 s and 0.8 GB on a busy machine; the job has 15
#: minutes for up to 20 lanes.
LEAST_CASES = 5_000
#: Bytes of a case in a report, and packed. The means of five lanes' reports are 7 to 14 kB, and 0.3 to 0.95 kB packed.
REPORT_BYTES, PACKED_BYTES = 16_000, 1_000
#: Bytes of a case in a baseline file. The mean of this repository's 900 is 1.05 kB.
BASELINE_BYTES = 1_100
#: Bytes of a baseline file. GitHub sends them as base64 in one answer, of which the client reads 32 MiB.
MOST_FILE_BYTES = 16_000_000
#: Files of baselines. Each may cost one of the 1,000 requests that GitHub allows the token of a repository in an hour.
MOST_FILES = 500
_BLANK_LINE = re.compile(rb"\n\r?\n")


def most_cases(recorded: int) -> int:
    """The most cases of a report if the largest folder of baselines at the merge base has `recorded`."""
    return max(LEAST_CASES, 2 * recorded)


def most_recorded(folders: Mapping[str, Mapping[str, Baseline]]) -> int:
    """The number of cases in the largest folder of baselines (folder -> suite -> baseline)."""
    return max((sum(len(file.cases) for file in suites.values()) for suites in folders.values()), default=0)


def most_recorded_in(root: Path) -> int:
    """`most_recorded` of the folder `root`, without parsing its files: a case ends with a blank line."""
    cases: Counter[Path] = Counter()
    for path in root.glob("*/*.yaml"):
        with contextlib.suppress(OSError):  # Whoever needs the file reports the error.
            cases[path.parent] += len(_BLANK_LINE.findall(path.read_bytes()))
    return max(cases.values(), default=0)


def outgrown(selected: Sequence[Case], config: Config) -> list[str]:
    """One line for each limit that a run of these tests would exceed, with the next step; none for a project without
    `lanes`, which guards no pull requests.

    A test counts as two cases, forward and backward. `selected`: the forward cases of the selected tests.
    """
    if not config.settings.lanes:
        return []
    lines, root = [], config.baselines_dir
    cases, most = 2 * len(selected), most_cases(most_recorded_in(root))
    if cases > most:
        lines.append(
            f"{len(selected):,} tests are up to {cases:,} cases, of which perfguard comment reads {most:,} in a lane: "
            f"{LEAST_CASES:,}, or twice those recorded at the merge base; merge tests and their baselines in parts"
        )
    for suite, tests in Counter(case.suite for case in selected).items():
        size = 2 * tests * BASELINE_BYTES
        if size > MOST_FILE_BYTES:
            lines.append(
                f"{suite}: baselines of {tests:,} tests take up to {size / 1e6:.0f} MB, and perfguard comment reads "
                f"{MOST_FILE_BYTES / 1e6:.0f} MB of one file; split the file of tests"
            )
    files = sum(1 for _ in root.glob("*/*.yaml"))
    if files > MOST_FILES:
        lines.append(
            f"{files:,} files of baselines, of which perfguard comment reads {MOST_FILES}; merge files of tests"
        )
    return lines
