"""The list of skips: what is printed, and when a run fails for it. And which combinations of parameters run by day."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import tests.skips
from tests.conftest import each_value

Run = Callable[..., tuple[pytest.RunResult, list[str]]]

TESTS = {
    "test_one": """
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_large(n):
            pytest.skip(f"needs {n} GiB of memory [here]")

        def test_passes():
            pass
    """,
    "test_two": """
        import pytest

        @pytest.mark.skip(reason="needs 7 GiB of memory [here]")
        def test_small():
            pass

        @pytest.mark.xfail(reason="not today", strict=True)
        def test_wrong():
            assert False
    """,
    "test_three": """
        import pytest

        pytest.importorskip("no_such_module", reason="not installed")
    """,
}
LIMITS = """
["needs * GiB of memory [here]"]
"test_one.py" = 3
"*" = 1

["not installed"]
"test_three.py" = 1
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the tests above under the limits, and returns the result and the lines behind pytest's own summary."""
    pytester.makepyfile(**TESTS)
    monkeypatch.setattr(tests.skips, "LIMITS", pytester.path / "skips.toml")

    def run(limits: str, *arguments: str) -> tuple[pytest.RunResult, list[str]]:
        tests.skips.LIMITS.write_text(limits)
        result = pytester.runpytest_inprocess("-p", "tests.skips", "-p", "no:cacheprovider", *arguments)
        start = next(number for number, line in enumerate(result.outlines) if line.startswith("skips:"))
        return result, [line for line in result.outlines[start:] if line]  # pytest may put one before a full-width line

    return run


@pytest.mark.parametrize("arguments", [[], ["-n", "2"], ["-rs"], ["-q", "--no-summary"]], ids=" ".join)
def test_skips_are_grouped_above_the_closing_line(run: Run, arguments: list[str]) -> None:
    result, lines = run(LIMITS, *arguments)
    assert result.ret == pytest.ExitCode.OK
    assert lines[:3] == ["skips: 5", "      4 × needs * GiB of memory [here]", "      1 × not installed"]
    (closing,) = lines[3:]
    assert "1 passed, 5 skipped, 1 xfailed" in closing


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]], ids=" ".join)
def test_a_reason_that_is_not_listed_fails(run: Run, arguments: list[str]) -> None:
    result, lines = run(LIMITS.partition('["not')[0], *arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert lines[3] == "new skips in test_three.py: 1 of at most 0 × not installed: test_three.py"
    assert lines[4].startswith("FAILED: ")
    assert "5 skipped" in lines[5]
    assert len(lines) == 6


def test_a_file_above_its_limit_fails_though_another_is_below(run: Run) -> None:
    result, lines = run(LIMITS.replace('"test_one.py" = 3', '"test_one.py" = 2').replace('"*" = 1', '"*" = 9'))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert lines[3] == (
        "new skips in test_one.py: 3 of at most 2 × needs * GiB of memory [here]: "
        "test_one.py::test_large[0], test_one.py::test_large[1], test_one.py::test_large[2]"
    )


def test_a_part_of_the_tests_skips_less(run: Run) -> None:
    result, lines = run(LIMITS, "-k", "small")
    assert result.ret == pytest.ExitCode.OK
    assert lines[0] == "skips: 2"  # and the module, which is skipped before anything is selected


def test_what_failed_before_keeps_its_exit_status(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_four="import nothing_of_this_name")
    result, _ = run("")
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_every_listed_file_is_there() -> None:
    limits = tomllib.loads(tests.skips.LIMITS.read_text(encoding="utf-8"))
    root = Path(__file__).parents[1]
    assert limits
    for reason, files in limits.items():
        for file, most in files.items():
            assert list(root.glob(file)), f"{reason}: {file} is gone: take it off tests/skips.toml"
            assert most > 0


def test_by_day_each_value_is_tried_on_each_way_and_not_in_each_combination() -> None:
    cases: list[Any] = [
        Mock(
            callspec=Mock(params={"kernel_path": way, "dtype": dtype, "layout": layout, "also": layout}),
            iter_markers=lambda _: [Mock(args=["dtype"]), Mock(args=["layout, also"])],
        )
        for way, dtype, layout in itertools.product(range(2), range(3), range(9))
        if (dtype, layout) != (0, 0)  # a combination that cannot be
    ]
    kept = [case.callspec.params for case in each_value(cases)]
    for name, count in (("dtype", 3), ("layout", 9)):
        assert {(case["kernel_path"], case[name]) for case in kept} == set(itertools.product(range(2), range(count)))
    assert len(kept) == 2 * 9
    alone: list[Any] = [Mock(spec=["iter_markers"], iter_markers=lambda _: [])]
    assert each_value(alone) == alone
