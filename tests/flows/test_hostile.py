"""A user's object is used, and never asked whether it is true, how long it is, what equals it, or for its hash."""

from __future__ import annotations

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project

HOSTILE = """
import dataclasses
import torch
from perfguard.testing import fake

class Asked(BaseException):
    '''No `except Exception` hides it.'''

def _refuses(*_):
    raise Asked("a user's object was asked")

class Silent:
    '''Answers no question about itself.'''
    __bool__ = __len__ = __eq__ = __ne__ = __hash__ = __contains__ = __iter__ = __getitem__ = _refuses
    __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = _refuses

class Function(Silent):
    factor = 2.0
    def __init__(self, run):
        self.run = run
    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)

@dataclasses.dataclass(eq=False)
class Settings(Silent):
    '''An argument, a choice among configurations, and a result beside tensors.'''
    factor: float = 2.0
    held: object = None

@dataclasses.dataclass(eq=False)
class Rows(Silent):
    '''Looks like a tensor.'''
    rows: torch.Tensor
    shape = dtype = device = requires_grad = layout = property(lambda self: Silent())

class Layer(torch.nn.Module):
    '''torch keeps modules in sets, so that one that has no hash is none.'''
    __bool__ = __len__ = __contains__ = __iter__ = _refuses
    __hash__ = object.__hash__
    __eq__ = __ne__ = _refuses

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((16,), 1.5))

    def forward(self, x):
        return x * self.weight

class Empty(Layer):
    __len__ = lambda self: 0
    __bool__ = lambda self: False

    def forward(self, x):
        fake.launch("scale_kernel", us=2_000.0)
        return super().forward(x)
"""

TEST = """
import copy
import pytest
import torch
from hostile import Empty, Function, Layer, Rows, Settings
from perfguard.testing import fake

def scaled(x, rows, *, settings, other=None):
    fake.launch("scaled_kernel", us=2_000.0)  # of what launches nothing, thousands of calls are simulated for a block
    out = x * settings.factor + rows["of"][0].rows
    return {"out": out, "with": settings, "more": [None, 3, float("nan"), settings]}

def test_function(perfguard):
    x = torch.randn(8, 16, device=perfguard.device, requires_grad=True)
    rows = {"of": (Rows(torch.ones(16, device=perfguard.device)), [Settings()])}
    perfguard(
        Function(scaled),
        x,
        rows,
        reference=Function(scaled),
        rival=Function(scaled),
        kwargs={"settings": Settings()},
        walk=[(torch.randn(4, 16), rows), lambda: (torch.randn(5, 16), rows)],
        configurations=[{"other": Settings()}, {"other": Rows(torch.ones(1))}],
    )

@pytest.mark.parametrize(("kind", "compiled"), [(Empty, False), (Layer, True)])
def test_module(perfguard, kind, compiled):
    x = torch.randn(8, 16, device=perfguard.device)
    whole = kind().to(perfguard.device)
    module = copy.deepcopy(whole)
    if compiled:
        module = torch.compile(module, backend="aot_eager")
    perfguard(module, x, reference=whole, walk=[torch.randn(4, 16)], timed=not compiled)
"""

OBSERVED = """
import torch
from hostile import Function, Layer, Rows, Settings

def test_uses_it():
    x = torch.randn(8, 16, requires_grad=True)
    layer = Function(Layer())
    out = layer(x) * Settings().factor + Rows(torch.ones(16)).rows
    out.sum().backward()

def test_compiles_it():
    torch.compile(Layer(), backend="aot_eager")(torch.randn(8, 16)).sum().backward()
"""


@pytest.fixture
def hostile(project: Project) -> Project:
    (project.path / "hostile.py").write_text(HOSTILE)
    project.test_file(TEST)
    return project


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("cpu", ["--perfguard-lane=cpu"]),
        pytest.param("fake", [], marks=pytest.mark.nightly),  # times ask nothing else, and take twice as long
    ],
)
def test_guarded_calls_ask_no_object(hostile: Project, device: str, options: list[str]) -> None:
    hostile.configure(device=device, extra_seconds=0.2)
    hostile.run().assert_outcomes(passed=3)  # with derived inputs
    hostile.configure(extra_seconds=0)
    hostile.guard("--perfguard-update=new", *options).assert_outcomes(passed=3)
    again = hostile.guard(*options)
    again.assert_outcomes(passed=3)
    assert again.ret in (ExitStatus.PASSED, ExitStatus.UNGUARDED), again.stdout.str()  # times have no base


def test_observed_tests_ask_no_object(hostile: Project) -> None:
    hostile.configure(device="cpu")
    hostile.test_file(OBSERVED)
    result = hostile.guard("--perfguard-observe=.")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["NEW  2 cases*"])


ODD = [
    ("tolerance=1e-3", "perfguard(tolerance=0.001): is a float; give a perfguard.Tolerance"),
    ("work=1024", "perfguard(work=1024): is a int; give a perfguard.Work"),
    ("cache=torch.float32", "perfguard(cache=torch.float32): give one of 'cold', 'warm'"),
    ("cache='hot'", "perfguard(cache='hot'): give one of 'cold', 'warm'"),
    ("kwargs=[1]", "perfguard(kwargs=[1]): is a list; give the keyword arguments as a dict"),
    ("label=Silent()", "is a Silent; give a text"),
    ("mutates=0", "perfguard(mutates=0): give positions of arguments, e.g. (0,)"),
    ("mutates=(x,)", "is no position of the 1 arguments; write (0,) for the first argument"),
    ("clobbers=0", "perfguard(clobbers=…): 0 is neither a position of the 1 arguments nor"),
    ("clobbers=(Silent(),)", "is neither a position of the 1 arguments nor"),
    ("cold_start=2", "perfguard(cold_start=2): give True, or a function for each"),
    ("groups=5", "perfguard(groups=5): give the running ends of the groups"),
    ("configurations=5", "perfguard(configurations=…): 5 gives no keyword arguments; write"),
    ("configurations=[5]", "perfguard(configurations=…): 5 gives no keyword arguments; write"),
    ("configurations={5: {}}", "perfguard(configurations=…): 5 gives no keyword arguments; write"),
    ("dim=0", "perfguard(…, dim=…): no such option; inputs by keyword go into kwargs={'dim': …}"),
    ("hard=Silent()", "give True, False, or perfguard.Hard"),
    ("hard=pg.Hard(without=None)", "Hard(without=None): give a list of values"),
    ("tolerance=pg.Tolerance(k='2', reason='r')", "Tolerance(k='2'): give a number above 0"),
]


def test_an_odd_argument_is_one_error_with_the_next_step(hostile: Project) -> None:
    tests = ["import perfguard as pg", "import torch", "from hostile import Silent", "x = torch.randn(4)"]
    for at, (given, _) in enumerate(ODD):
        tests.append(f"def test_{at}(perfguard): perfguard(torch.sin, x, reference=torch.sin, {given})")
    hostile.test_file("\n".join(tests))
    result = hostile.run("--tb=line")
    result.assert_outcomes(failed=len(ODD))
    said = [line for line in result.stdout.lines if "UsageError: " in line]
    assert [words for _, words in ODD if not any(words in line for line in said)] == []
