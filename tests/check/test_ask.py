"""A fault that one process finds is asked about in another, on another version of the kernel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest
import torch

from perfguard.check.all_configs import check_given
from perfguard.check.ask import ask
from perfguard.check.hard_inputs.search import run_hard
from perfguard.model.call import Call
from perfguard.model.records import Doubt
from tests.nursery import Nursery

ROOT = Path(__file__).parents[2]

# `find` prints the doubts of each call; `ask` reads them, and prints the answers. A fault is there if it is named.
VERSION = '''
import sys
from functools import partial

import msgspec
import torch

from perfguard.check.all_configs import check_given
from perfguard.check.ask import ask
from perfguard.check.hard_inputs.search import run_hard
from perfguard.model.call import HARD_KINDS, Call, Hard
from perfguard.model.records import Doubt

BROKEN = {broken}


def plain(*shape, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_(grad)


def normalised(x):
    norm = x.norm(dim=-1, keepdim=True)
    return x / (norm if BROKEN else norm + 1e-5)


def only(*kinds):
    return Hard(without=sorted({{*HARD_KINDS}} - {{*kinds}}), reason="-")


def product(x, y):
    """Wrong where two things come together: an odd number of rows, and an outlier."""
    both = len(x) % 2 == 1 and bool(x.abs().amax() > 500)
    return x @ y * (1.5 if both and BROKEN else 1.0)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        wrong = BROKEN and bool((x == x[:, :1]).all())
        return grad * (3.0 if wrong else 2.0)


class OfIncoming(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(max=1000.0) * 2.0 if BROKEN else grad * 2.0


class Cache:
    """Scales by size; if broken, each new size takes the place of the first one, too."""

    def __init__(self):
        self.known = {{}}

    def __call__(self, x):
        new = x.shape not in self.known
        scale = self.known.setdefault(x.shape, x.square().sum())
        if new and BROKEN:
            self.known[next(iter(self.known))] = scale
        return x / scale


def chosen(x, factor=2, at=0):
    return x * (3.0 if BROKEN and factor == 7 else 2.0)


# The table of the version that is right has grown: all numbers are others.
TABLE = [{{"factor": 5}}] * (not BROKEN) + [{{"factor": 2}}, {{"factor": 7}}]
ENTRIES = {{**({{}} if BROKEN else {{"width <= 8": {{"at": 0}}}}), "width <= 64": {{"at": 1 - BROKEN, "factor": 7}}}}

CALLS = {{
    "cut": lambda: Call(
        normalised, (plain(6, 900),), lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-5), hard=only("values", "sizes")
    ),
    "parts": lambda: Call(
        product, (plain(8, 16), plain(16, 12)), torch.matmul, hard=only("values", "sizes")
    ),
    "backward": lambda: Call(Doubled.apply, (plain(8, 16, grad=True),), lambda x: x * 2.0, hard=only("values")),
    "incoming": lambda: Call(OfIncoming.apply, (plain(8, 16, grad=True),), lambda x: x * 2.0, hard=only("gradients")),
    "afterwards": lambda: Call(Cache(), (plain(8, 64),), lambda x: x / x.square().sum(), hard=only("sizes")),
    "table": lambda: Call(chosen, (plain(8, 16),), lambda x: x * 2.0, configurations=TABLE, hard=None),
    "entries": lambda: Call(chosen, (plain(8, 16),), lambda x: x * 2.0, configurations=ENTRIES, hard=None),
}}


def found(call):
    given = check_given(call)
    assert not given.checked.wrong
    return run_hard(call, 60.0, others=given.others).doubts


if __name__ == "__main__":
    if sys.argv[1] == "find":
        print(msgspec.json.encode({{name: found(make()) for name, make in CALLS.items()}}).decode())
    else:
        asked = msgspec.json.decode(sys.stdin.read(), type=dict[str, list[Doubt]])
        print(msgspec.json.encode({{name: ask(CALLS[name](), doubts) for name, doubts in asked.items()}}).decode())
'''

Doubts = dict[str, list[Doubt]]


def run(nursery: Nursery, folder: Path, broken: bool, *arguments: str, given: str = "") -> Doubts:
    folder.mkdir(exist_ok=True)
    (folder / "version.py").write_text(VERSION.format(broken=broken))
    done = subprocess.run(
        [nursery.python, "-m", "version", *arguments], input=given, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Doubts)


@pytest.fixture(scope="module")
def doubts(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Doubts:
    """What the broken version's process finds."""
    return run(nursery, tmp_path_factory.mktemp("work") / "broken", True, "find")


@pytest.fixture(scope="module")
def answers(nursery: Nursery, doubts: Doubts, tmp_path_factory: pytest.TempPathFactory) -> tuple[Doubts, Doubts]:
    """Those of two bases: one that is as broken, and one that is right."""
    folder, given = tmp_path_factory.mktemp("base"), msgspec.json.encode(doubts).decode()
    sides = (("broken", True), ("right", False))
    broken, right = (run(nursery, folder / name, broken, "ask", given=given) for name, broken in sides)
    return broken, right


@pytest.mark.parametrize("name", ["cut", "parts", "backward", "incoming", "afterwards", "table", "entries"])
def test_the_base_is_right_or_has_the_same_fault(name: str, doubts: Doubts, answers: tuple[Doubts, Doubts]) -> None:
    (doubt,) = doubts[name]
    ((old,), (right,)) = (answer[name] for answer in answers)
    assert doubt.problem
    assert old.problem
    assert right == msgspec.structs.replace(doubt, problem="")
    assert old == msgspec.structs.replace(doubt, problem=old.problem)


def test_doubts_say_what_was_tried(doubts: Doubts) -> None:
    (cut,), (parts,), (backward,), (incoming,) = (doubts[name] for name in ("cut", "parts", "backward", "incoming"))
    assert cut.cut == {0: "dim 1 cut to 388"}
    assert cut.name.startswith("hard input of the call cut to float32[6,388], argument 0 (")
    assert cut.problem.startswith(f"{cut.name}: ")
    (together,) = parts.tried
    assert [kind for kind, _ in together] == ["sizes", "values"]
    assert (backward.backward, parts.backward) == (True, False)
    ((_, steps),) = incoming.tried[0]
    assert [*steps] == [-1]


def test_configurations_are_known_by_what_they_are(doubts: Doubts) -> None:
    (table,), (entry,) = doubts["table"], doubts["entries"]
    assert (table.name, table.output, table.tried) == ("factor=7", "output", [])
    assert table.problem.startswith("configuration 1 (factor=7): output: RMSE ")
    assert entry.name == "width <= 64"
    assert entry.problem.startswith("configuration 0 (width <= 64, at=0, factor=7): output: RMSE ")


# -- what cannot be asked ----------------------------------------------------------------------------------------------

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
ZERO = Doubt("zero", "wrong", inputs="float32[8,16]", tried=[[("values", {0: "row 0 zero"})]])
SEVEN = Doubt("factor=7", "wrong", inputs="float32[8,16]")


def raising(error: Exception) -> torch.Tensor:
    raise error


def doubled(x: torch.Tensor, factor: int = 0) -> torch.Tensor:
    return x * 2.0 if factor != 9 else raising(ValueError("no such factor"))


def test_a_doubt_that_cannot_be_tried_has_no_answer() -> None:
    call = Call(doubled, (X,), lambda x: x * 2.0, configurations=[{"factor": 7}, {"factor": 9}])
    nine = msgspec.structs.replace(SEVEN, name="factor=9")
    gone = msgspec.structs.replace(SEVEN, name="factor=8")
    cut = msgspec.structs.replace(ZERO, tried=[[("sizes", {0: "dim 1 cut to 3"})]])
    row = msgspec.structs.replace(ZERO, tried=[[("values", {0: "row 11 zero"})]])
    right = [msgspec.structs.replace(doubt, problem="") for doubt in (ZERO, SEVEN)]
    assert ask(call, [nine, ZERO, gone, row, SEVEN]) == right
    wider = Call(doubled, (torch.cat([X, X], 1),), lambda x: x * 2.0, configurations=call.configurations)
    assert ask(wider, [ZERO, SEVEN]) == []
    # Refused by the reference, refused by the candidate, and memory that nobody has.
    no_zeros = Call(doubled, (X,), lambda x: x * 2.0 if x[0].any() else raising(ValueError("zeros")))
    assert ask(no_zeros, [ZERO]) == []
    narrow = Call(lambda x: x * 2.0 if x.shape[1] > 4 else raising(ValueError("narrow")), (X,), lambda x: x * 2.0)
    assert ask(narrow, [cut]) == []
    hungry = Call(lambda x: x * 2.0 if x[0].any() else x.new_empty(1 << 50), (X,), lambda x: x * 2.0)
    assert ask(hungry, [ZERO]) == []


def test_nothing_but_what_is_asked_runs_and_random_numbers_stay() -> None:
    seen: list[int] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        seen.append(int(x.count_nonzero()))
        return x * torch.rand(1).ceil() * 2.0

    state = torch.random.get_rng_state()
    (answer,) = ask(Call(fn, (X,), lambda x: x * 2.0, hard=None), [ZERO])
    assert answer.problem == ""
    assert seen == [7 * 16]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_wrong_answer_says_what_is_wrong_there() -> None:
    call = Call(lambda x: x * 2.0 + ~x[0].any(), (X,), lambda x: x * 2.0)
    (answer,) = ask(call, [ZERO])
    assert answer.problem.startswith("zero: output: ")


def test_a_configuration_of_a_tuner_is_asked_by_name_where_its_table_has_grown(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from tests.check.test_all_configs import TUNED
    from tests.measure.metrics.binaries import load

    grown = TUNED.replace("configs=[", 'configs=[triton.Config({"F": 2, "N": 1}), ')
    for name in ("work", "base"):
        (tmp_path / name).mkdir()
    work, base = (
        Call(load(tmp_path / name, text), (X,), lambda x: x * 2.0, hard=None)
        for name, text in (("work", TUNED), ("base", grown))
    )
    (doubt,) = run_hard(work, 60.0, others=check_given(work).others).doubts
    assert doubt.name.startswith("kernel in F: 3, ")
    (old,) = ask(base, [doubt])
    assert old.problem.startswith("configuration 2 (kernel in F: 3, ")
