"""Names of suites and cases: one for each file and each test, whatever they are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.model.suite_names import file_of, name_of, suite_of
from perfguard.store.baseline_files import Store

ROOT = Path("/repo")
# Close relatives: what a rule for names that drops or joins something takes for one another.
_WORDS = st.sampled_from(["a", "b", "test", "tests", "test_a", "test_", "a.b", "a+b", "+", "py", ".a", "a b", "é", "-"])
_PATHS = st.builds(
    lambda folders, name, suffix: "/".join([*folders, name + suffix]),
    st.lists(_WORDS, max_size=3),
    _WORDS,
    st.sampled_from([".py", ".py.py", "", ".txt"]),
).filter(lambda path: path not in (".", ".."))


@pytest.mark.parametrize(
    ("path", "suite"),
    [
        ("tests/kernels/test_quantize.py", "kernels.quantize"),
        ("tests/test_a.py", "a"),
        ("test_a.py", "test_a"),
        ("tests/a.py", "tests.a+py"),
        ("lib/tests/test_a.py", "lib.tests.test_a"),
        ("benchmarks/bench_a.py", "benchmarks.bench_a+py"),
        ("tests/my kernels/test_a.py", "tests.my++20kernels.test_a+py"),
        ("../elsewhere/test_a.py", "++2e++2e.elsewhere.test_a+py"),
    ],
)
def test_suites_are_named_after_files(path: str, suite: str) -> None:
    assert suite_of(Path("/repo") / path, Path("/repo")) == suite
    assert file_of(suite, ROOT) == ROOT / path


@given(path=_PATHS)
def test_each_file_has_a_suite_of_its_own_that_can_name_a_baseline(path: str) -> None:
    suite = suite_of(ROOT / path, ROOT)
    assert file_of(suite, ROOT) == ROOT / path  # so no other file has it
    assert Store(ROOT / "baselines").path("here", suite).name == f"{suite}.yaml"


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("tests/test_a.py::test_b", "b"),
        ("tests/test_a.py::test_b[64-bf16]", "b[64-bf16]"),
        ("tests/test_a.py::TestC::test_b[a::b]", "TestC.b[a::b]"),
        ("tests/test_a.py::test_testb", "test_testb"),
        ("tests/test_a.py::testb", "testb"),
    ],
)
def test_cases_are_named_after_tests(nodeid: str, name: str) -> None:
    assert name_of(nodeid) == name
