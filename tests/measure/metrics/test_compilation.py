"""What torch.compile makes of a call and its walk, and a mutant for each reading that it alone reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from perfguard._compat.torch_compiler import forget_compiled
from perfguard.judge.exact import judge_exact
from perfguard.measure.compiled import settings
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import compilation
from perfguard.measure.metrics.compilation import walk
from perfguard.measure.metrics.subject import Subject
from perfguard.measure.replay import steps
from perfguard.model.call import Call
from perfguard.model.records import Reading, Word

DEVICE = CpuDevice()

Readings = dict[str, Reading]


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(fn, backend="eager")


def read(fn: Callable[..., Any], *inputs: tuple[Any, ...]) -> Readings:
    """The readings of `fn` on the first of `inputs`, walked over the others."""
    forget_compiled()
    call = Call(fn, inputs[0], fn, walk=inputs[1:])
    subject = Subject(call.run, steps=steps(call), settings=settings())
    return {reading.metric: reading for reading in compilation.read(subject, DEVICE)}


def changed(before: Readings, after: Readings) -> dict[str, str]:
    """Metric -> note, of the readings that a guarded run would call CHANGED."""
    assert before.keys() == after.keys()
    verdicts = {name: judge_exact(reading, before[name].value) for name, reading in after.items()}
    return {name: after[name].note for name, verdict in verdicts.items() if verdict.word is Word.CHANGED}


def rows(*counts: int, grad: bool = False) -> list[tuple[torch.Tensor]]:
    return [(torch.ones(count, 4, requires_grad=grad),) for count in counts]


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


SCALED = compiled(scaled)


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.sum() < 0:
        y = -y
    return y * 2


@torch.compiler.disable
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def left_out(x: torch.Tensor) -> torch.Tensor:
    return doubled(x.sin())


def by_counts(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Rows weighted by how many there are of their kind."""
    return x * counts.sum()


def by_numbers(x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    return x * counts[0] / counts[0]


def checkpointed(body: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(body, x, use_reentrant=False)  # type: ignore[no-any-return]

    return run


def in_two_regions() -> Callable[..., Any]:
    first, second = compiled(lambda x: x.sin()), compiled(lambda x: x * 2)
    return lambda x: second(first(x))


class Layer(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.compile(backend="eager")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if self.number < 9 else 3)


def layers(*numbers: int) -> Callable[..., Any]:
    built = [Layer(number) for number in numbers]
    return lambda x: [layer(x) for layer in built]


def recomputed(noticed: bool) -> Callable[..., Any]:
    """A checkpointed block, which runs again in the backward pass, there under another mode if that is noticed."""
    recomputing: list[int] = []
    body = compiled(lambda x: x.sin() * (2 if len(recomputing) < 9 else 3))

    def block(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = body(x)
        if noticed:
            recomputing.append(1)
        return out

    def run(x: torch.Tensor) -> Any:
        recomputing.clear()
        return checkpoint(block, x, use_reentrant=False)

    return run


@dataclass(frozen=True)
class Mutant:
    """A call that compiles worse than `healthy`, and the notes on the metrics that report it (their beginnings)."""

    run: Callable[..., Any]
    notes: dict[str, str]
    inputs: Sequence[tuple[Any, ...]] = ((torch.ones(2, 4),),)
    healthy: Callable[..., Any] = SCALED
    healthy_inputs: Sequence[tuple[Any, ...]] = ()


X = torch.ones(8, 4)
LOADS = [torch.tensor(load) for load in ([4, 4], [8, 0], [3, 5])]
LINE = branching.__code__.co_firstlineno + 2
MUTANTS = {
    # K12. The graph's second half is another function to the compiler.
    "a branch on data": Mutant(
        compiled(branching),
        {
            "graph_breaks": f"graph break at test_compilation.py:{LINE} in branching: Data-dependent branching "
            "(`if y.sum() < 0:`)",
            "graphs": "",
            "graph_operators": "",
        },
    ),
    # One operator in a graph here, one there: only the break reports it.
    "a disabled function": Mutant(compiled(left_out), {"graph_breaks": "graph break at "}),
    # K48, torchtitan #1895: the loss is finite, nothing is compiled.
    "a break inside checkpointing": Mutant(
        compiled(checkpointed(branching)),
        {"graph_breaks": "graph break", "eager_frames": "left to Python: test_compilation.run: no operator in its"},
        rows(2, grad=True),
        compiled(checkpointed(scaled)),
    ),
    # K40, torchtitan #2007: the walk goes over loads, not over sizes.
    "counts as Python numbers": Mutant(
        compiled(by_numbers),
        {"recompiles": "recompiled for test_compilation.by_numbers: counts[0] == 4"},
        [(X, load.tolist()) for load in LOADS],
        compiled(by_counts),
        [(X, load) for load in LOADS],
    ),
    "a class for each layer": Mutant(
        layers(0, 1, 2), {"recompiles": "recompiled for test_compilation.forward: "}, healthy=layers(1, 1, 1)
    ),
    # K48: the block runs anew in backward, under another mode, which costs a second compilation.
    "recomputing": Mutant(recomputed(True), {"recompiles": "recompiled for"}, rows(2, grad=True), recomputed(False)),
    # Fused away: no launch and no operator outside shows it (torchtitan #2196).
    "a round trip through bf16": Mutant(compiled(lambda x: (x.sin().bfloat16() * 2).float()), {"graph_operators": ""}),
    "one region in two": Mutant(in_two_regions(), {"graphs": ""}),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_changes_its_metrics_and_no_others(mutant: Mutant) -> None:
    found = changed(read(mutant.healthy, *(mutant.healthy_inputs or mutant.inputs)), read(mutant.run, *mutant.inputs))
    assert found.keys() == mutant.notes.keys()
    for metric, note in mutant.notes.items():
        assert found[metric].startswith(note) if note else not found[metric]


def test_a_healthy_call() -> None:
    found = read(compiled(scaled), *rows(2, 3, 5))
    assert {name: reading.value for name, reading in found.items() if reading.gated} == {
        "graphs": 1,
        "graph_operators": 2,
        "graph_breaks": 0,
        "eager_frames": 0,
        "recompiles": 1,  # the second size makes it dynamic
        "compiler_leaks": 0,
    }
    assert found["graph_functions"].value == ["test_compilation.scaled (2)"]
    assert all(reading.portable and reading.drifts for reading in found.values())


def test_a_setting_that_is_left_behind_is_named() -> None:
    """K39, torchtitan #2741."""

    def readings(apply: Callable[[], None]) -> Readings:
        forget_compiled()
        before = settings()
        apply()
        call = Call(compiled(scaled), rows(2)[0], scaled)
        subject = Subject(call.run, steps=steps(call), settings=before)
        return {reading.metric: reading for reading in compilation.read(subject, DEVICE)}

    healthy = readings(lambda: None)
    with torch._dynamo.config.patch(capture_scalar_outputs=False):  # put back behind the test
        mutant = readings(lambda: setattr(torch._dynamo.config, "capture_scalar_outputs", True))
    assert changed(healthy, mutant) == {
        "compiler_leaks": "compiler setting left changed: dynamo.capture_scalar_outputs: False -> True"
    }


def test_comments_lines_and_folders_change_nothing(tmp_path: Path) -> None:
    """Breaks, guards and names are read from source that has moved."""
    source = "def moved(x, n):\n    y = x.sin() * n\n    if y.sum() < 0:\n        y = -y\n    return y * 2\n"
    found = []
    for folder, text in (("one", source), ("two", "# A comment.\n\n" + source.replace(" < 0:", " < 0:  # never"))):
        path = tmp_path / folder / "moved.py"
        path.parent.mkdir()
        path.write_text(text)
        names: dict[str, Any] = {}
        exec(compile(text, str(path), "exec"), names)
        inputs = [(torch.ones(3), n) for n in (2, 3)]
        found.append({name: reading.value for name, reading in read(compiled(names["moved"]), *inputs).items()})
    assert found[0] == found[1]
    assert (found[0]["graph_breaks"], found[0]["recompiles"]) == (1, 1)


@torch.library.custom_op("perfguard_tests::opaque_cos", mutates_args=())
def opaque_cos(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


@opaque_cos.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on loading inductor
def test_kernels_that_inductor_generates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs come from its code, not from its cache, which would hide how many kernels there are."""
    import torch._inductor.config

    # Nothing here is about vectors. To find out which the C++ compiler knows takes it ten programs.
    monkeypatch.setattr(torch._inductor.config.cpp, "vec_isa_ok", False)

    def generated(fn: Callable[[torch.Tensor], torch.Tensor]) -> Readings:
        call = Call(torch.compile(fn), rows(64)[0], fn)
        call.run()  # as the check does: loads inductor, fills the cache
        return read(call.fn, *rows(64))

    fused = generated(lambda x: (x.sin().cos() * 2).float())
    assert (fused["generated_kernels"].value, fused["library_calls"].value) == (1, 0)
    assert not fused["generated_kernels"].portable
    # K11: an operator that the compiler cannot see into.
    assert changed(fused, generated(lambda x: (opaque_cos(x.sin()) * 2).float())).keys() == {"generated_kernels"}


def test_an_eager_call_and_a_backward_case_have_no_readings() -> None:
    call = Call(scaled, rows(2)[0], scaled)
    assert compilation.read(Subject(call.run, steps=steps(call)), DEVICE) == []
    assert compilation.read(Subject(call.run, direction="backward"), DEVICE) == []


def over(fn: Callable[..., Any], *inputs: Any) -> list[Callable[[], Any]]:
    return [lambda each=each: fn(*each) for each in inputs]


def test_a_walk_of_a_call_that_compiles_nothing_ends_after_one_step() -> None:
    calls: list[torch.Tensor] = []
    assert walk(over(calls.append, *rows(2, 3, 4))) is None
    assert len(calls) == 1


def test_the_first_lap_begins_with_nothing_whatever_ran_before() -> None:
    fn = compiled(lambda x: x.sin())
    for (x,) in rows(7, 8, 9):
        fn(x)
    first, second = (walk(over(fn, *rows(2, 3))) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.first.frames == second.first.frames
    assert (len(first.first.frames), first.second.frames) == (2, [])
    assert "size mismatch at index 0. expected 2, actual 3" in first.recompiled[0].recompiled


@pytest.mark.parametrize("go_on", [True, False])
def test_afterwards_the_process_knows_the_first_step_at_most(go_on: bool) -> None:
    fn = compiled(lambda x: x.sin())
    walk(over(fn, *rows(2, 3, 4)), go_on=go_on)
    with torch.compiler.set_stance("fail_on_recompile"):
        if go_on:
            fn(torch.ones(2, 4))
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            fn(torch.ones(3, 4))


@pytest.mark.parametrize("timed", [True, False])
def test_buffers_are_as_before_the_walk(timed: bool) -> None:
    """An entry of the walk sets one, as a load of experts: later readings are of the case's own."""
    module = torch.nn.BatchNorm1d(3).eval()
    assert module.running_mean is not None

    def entry() -> tuple[torch.Tensor]:
        assert module.running_mean is not None
        module.running_mean.fill_(7)
        return (torch.ones(2, 3),)

    call = Call(torch.compile(module, backend="eager"), (torch.ones(2, 3),), module, walk=[entry])
    compilation.read(Subject(call.run, timed=timed, steps=steps(call), settings=settings(), call=call), DEVICE)
    assert module.running_mean.tolist() == [0, 0, 0]


def test_compilations_of_the_second_lap_are_counted() -> None:
    """A number that grows with every call is another one on the second lap."""
    numbers = iter(range(100))
    fn = compiled(lambda x, n: x * n)
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        walked = walk([lambda: fn(torch.ones(2), next(numbers))] * 2)
    assert walked is not None
    assert [frame.recompiled for frame in walked.recompiled] == ["n == 0", "n == 1", "n == 2"]


def test_a_step_that_raises_is_named() -> None:
    """K40: a sum that was asserted for the first load binds the second."""

    def asserts(x: torch.Tensor, total: int) -> torch.Tensor:
        assert total == 8, "rows must add up to 8"
        return x.sin()

    with pytest.raises(AssertionError, match="add up to 8") as raised:
        read(compiled(asserts), (torch.ones(8), 8), (torch.ones(8), 7))
    assert raised.value.__notes__[-1] == "perfguard: raised while step 1 of the walk ran under the compiler"


def test_a_step_is_forward_and_backward_on_leaves_of_its_own() -> None:
    """So what is compiled, or fails, in backward only is seen; and nothing is left on the inputs."""
    x = torch.ones(2, 4, requires_grad=True)
    call = Call(compiled(scaled), (x,), scaled, walk=(lambda: (x,), (x.detach(),)))
    own, prepared, without = (step() for step in steps(call))
    assert [len(each) for each in (own, prepared)] == [1, 1]  # type: ignore[arg-type]
    assert without is None
    assert x.grad is None
