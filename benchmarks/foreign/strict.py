"""A pytest plugin for the files beside it: each call is made as it is given, and in strict runs, for five seeds.

Copied with them (see their first lines), on a machine without a GPU; the rows are written for docs/foreign.json:

    ROWS=docs/foreign.json python -m pytest -p strict -p no:perfguard test_interpreted.py
"""

import os

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "1"

from benchmarks.rows import write_rows
from perfguard import Hard
from perfguard.check.correctness import check
from perfguard.check.hard_inputs.search import run_hard
from perfguard.interpreter.entry import interpret_here, interpreter_error, interpreting
from perfguard.model.call import HARD_KINDS, Call

KINDS = ("masked lanes", "program order")
STRICT = Hard(without=[kind for kind in HARD_KINDS if kind not in KINDS], reason="strict runs alone")
SEEDS, ROWS = range(5), {}

interpret_here()


@pytest.fixture(autouse=True, params=SEEDS)
def seed(request):
    torch.manual_seed(request.param)


@pytest.fixture
def perfguard(request):
    name = request.node.callspec.params.get("name") or request.node.originalname.removeprefix("test_")
    row = ROWS.setdefault(name, {**dict.fromkeys(KINDS, 0), "problems": []})

    def run(fn, *args, reference, **options):
        call = Call(fn, args, reference, hard=STRICT, **options)
        with interpreting():
            try:
                problems = check(call, full=False).wrong
                found = None if problems else run_hard(call, 60.0)
            except Exception as error:
                problems, found = [f"does not run: {interpreter_error(error) or error!r}"], None
        if found is not None:
            problems = [found.problem] if found.problem else []
            row.update({kind: row[kind] + found.ran[kind] for kind in KINDS})
        row["problems"] += [each for each in problems if each not in row["problems"]]
        assert not problems

    return run


def pytest_sessionfinish():
    if path := os.environ.get("ROWS"):
        quiet = {kind: [name for name, row in ROWS.items() if row[kind] and not row["problems"]] for kind in KINDS}
        found = {name: row["problems"] for name, row in ROWS.items() if row["problems"]}
        write_rows(path, {"seeds": len(SEEDS), "functions": len(ROWS), "quiet": quiet, "problems": found})
