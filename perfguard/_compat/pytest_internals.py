"""Functions of pytest, pytest-xdist and pytest-benchmark outside their public interfaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perfguard._compat.private import Private, privates

if TYPE_CHECKING:
    import logging

    import pytest
    from _pytest.terminal import TerminalReporter as TerminalReporter  # noqa: PLC0414  # Other rooms import it.

XML = Private("_pytest.junitxml", "xml_key", "adding verdicts to --junitxml")
RUN_PROTOCOL = Private("_pytest.runner", "runtestprotocol", "running a test whose reports are merged or not told")
SETUP_STATE = Private("_pytest.runner", "SetupState.teardown_exact", "ending fixtures behind a test that others ran")
RECORDS = Private("_pytest.logging", "caplog_records_key", "reading what a test leaves without its log")
EXPRESSION = Private("_pytest.mark.expression", "Expression", "the -k of `perfguard accept`")

NAMES = (
    Private("_pytest.terminal", "TerminalReporter.ensure_newline", "progress lines"),
    Private("_pytest.terminal", "TerminalReporter.section", "the summary"),
    *privates("_pytest.mark.expression", EXPRESSION.used_for, "Expression.compile Expression.evaluate"),
    *privates("_pytest.junitxml", XML.used_for, "LogXML.node_reporter LogXML.finalize"),
    RUN_PROTOCOL,
    SETUP_STATE,
    RECORDS,
    Private("xdist.workermanage", "WorkerController", "giving each worker a device"),
    *privates("pytest_benchmark.stats", "guarding tests of pytest-benchmark", "Metadata Stats"),
)


def junit_log(config: pytest.Config) -> Any:
    """The writer of `--junitxml`; None without that option."""
    return config.stash.get(XML.get(), None)


def run_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Run a test's phases, and return their reports without passing them on."""
    reports: list[pytest.TestReport] = RUN_PROTOCOL.get()(item, log=False, nextitem=nextitem)
    return reports


def end_fixtures(item: pytest.Item, nextitem: pytest.Item | None) -> pytest.TestReport | None:
    """End the fixtures of earlier tests that `nextitem` does not share; returns the report of an error, or None."""
    import pytest

    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
    return None if call.excinfo is None else pytest.TestReport.from_item_and_call(item, call)


@contextmanager
def uncaptured(logger: logging.Logger) -> Iterator[None]:
    """Keep a logger's records out of the log that pytest shows of a failing test. Newer versions of pytest capture
    loggers that do not propagate, too."""
    handlers = [each for each in logger.handlers if type(each).__module__ == "_pytest.logging"]
    for handler in handlers:
        logger.removeHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.addHandler(handler)


def records_of_call(item: pytest.Item) -> list[logging.LogRecord]:
    """The log of a test's call phase, which pytest keeps until teardown; empty without its logging plugin."""
    key = RECORDS.loaded()
    phases: dict[str, list[logging.LogRecord]] = {} if key is None else item.stash.get(key, {})
    return phases.get("call", [])


def compiled_expression(text: str) -> Callable[[Callable[[str], bool]], bool]:
    """Compile an expression of pytest's -k. The result takes a predicate on words, and evaluates the expression.

    Raises:
        Exception: the expression is invalid. pytest 8 has its own exception, pytest 9 raises SyntaxError.
    """
    compiled = EXPRESSION.get().compile(text)
    return lambda means: bool(compiled.evaluate(lambda word, /, **_: means(word)))


def worker_input(config: pytest.Config) -> dict[str, str]:
    """The input of this worker from the controlling process of pytest-xdist."""
    given: dict[str, str] = config.workerinput  # type: ignore[attr-defined]
    return given


def benchmark_rounds(item: pytest.Item) -> Sequence[float]:
    """Seconds of each round that pytest-benchmark measured in a finished test; empty if it measured nothing."""
    fixture = getattr(item, "funcargs", {}).get("benchmark")
    stats = getattr(getattr(fixture, "stats", None), "stats", None)
    rounds: Sequence[float] = getattr(stats, "data", None) or []
    return rounds
