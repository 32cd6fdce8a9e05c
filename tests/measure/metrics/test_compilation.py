"""What torch.compile makes of a call, and a mutant for each reading that it alone turns from PASS to CHANGED."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from perfguard._compat.torch_compiler import forget_compiled
from perfguard.judge.exact import judge_exact
from perfguard.measure.compiled.settings import settings
from perfguard.measure.devices.cpu import CpuDevice
from perfguard.measure.metrics import compilation
from perfguard.measure.metrics.subject import Subject
from perfguard.measure.replay import steps
from perfguard.model.call import Call
from perfguard.model.records import Reading, Word

DEVICE = CpuDevice()


def read(fn: Callable[..., Any], *inputs: tuple[Any, ...], backend: Any = "eager") -> dict[str, Reading]:
    """The readings of `fn` compiled, on the first of `inputs`, walked over the others."""
    forget_compiled()
    call = Call(torch.compile(fn, backend=backend), inputs[0], fn, walk=inputs[1:])
    subject = Subject(call.run, steps=steps(call), settings=settings())
    return {reading.metric: reading for reading in compilation.read(subject, DEVICE)}


def changed(before: dict[str, Reading], after: dict[str, Reading]) -> dict[str, str]:
    """Metric -> note, of the readings that a guarded run would call CHANGED."""
    assert before.keys() == after.keys()
    verdicts = {name: judge_exact(reading, before[name].value) for name, reading in after.items()}
    return {name: after[name].note for name, verdict in verdicts.items() if verdict.word is Word.CHANGED}


def rows(*counts: int, grad: bool = False) -> list[tuple[torch.Tensor]]:
    return [(torch.ones(count, 4, requires_grad=grad),) for count in counts]


# ---- the healthy candidates --------------------------------------------------------------------------------------


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def by_counts(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Rows weighted by how many there are of their kind."""
    return x * counts.sum()


def checkpointed(body: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(body, x, use_reentrant=False)  # type: ignore[no-any-return]

    return run


# ---- mutants -----------------------------------------------------------------------------------------------------


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


def test_a_healthy_call() -> None:
    found = read(scaled, *rows(2, 3, 5))
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


def test_a_branch_on_data_breaks_the_graph_with_reason_and_line() -> None:
    """K12. The graph's second half is another function to the compiler."""
    found = changed(read(scaled, *rows(2)), read(branching, *rows(2)))
    assert found.keys() == {"graph_breaks", "graphs", "graph_operators"}
    line = branching.__code__.co_firstlineno + 2
    assert found["graph_breaks"] == (
        f"graph break at test_compilation.py:{line} in branching: Data-dependent branching (`if y.sum() < 0:`)"
    )


def test_a_disabled_function_breaks_the_graph() -> None:
    """What it did stays out of the graph: one operator here, one there, and only the break tells."""
    found = changed(read(scaled, *rows(2)), read(left_out, *rows(2)))
    assert found.keys() == {"graph_breaks"}
    assert "Skip calling `torch.compiler.disable()`d function" in found["graph_breaks"]


def test_a_break_that_checkpointing_hides_leaves_the_block_to_python() -> None:
    """K48, torchtitan #1895: the loss is finite, nothing is compiled."""
    inputs = rows(2, grad=True)
    found = changed(read(checkpointed(scaled), *inputs), read(checkpointed(branching), *inputs))
    assert found.keys() == {"graph_breaks", "eager_frames"}
    assert found["eager_frames"] == "left to Python: test_compilation.run: no operator in its graph"


def test_counts_as_python_ints_recompile_for_each_load() -> None:
    """K40, torchtitan #2007: the walk goes over loads, not over sizes."""
    x = torch.ones(8, 4)
    loads = [torch.tensor(load) for load in ([4, 4], [8, 0], [3, 5])]

    def as_ints(x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        return x * counts[0] / counts[0]

    healthy = read(by_counts, *((x, load) for load in loads))
    mutant = read(as_ints, *((x, load.tolist()) for load in loads))
    found = changed(healthy, mutant)
    assert found.keys() == {"recompiles"}
    assert found["recompiles"].startswith("recompiled for test_compilation.as_ints: counts[0] == 4")


def test_a_number_that_varies_recompiles() -> None:
    """K12: a guard on its value; a tensor in its place has none. The operators are the same."""
    numbers = [(torch.ones(2), n) for n in (3, 4)]
    tensors = [(x, torch.tensor(n)) for x, n in numbers]
    found = changed(read(lambda x, n: x * n, *tensors), read(lambda x, n: x * n, *numbers))
    assert found == {"recompiles": "recompiled for test_compilation.<lambda>: n == 3"}


def test_a_class_that_differs_recompiles_for_each_layer() -> None:
    """Every layer as a kind of its own: one compilation a layer instead of one in all."""

    class Layer(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (2 if self.number < 9 else 3)

    def run(layers: Sequence[Layer]) -> dict[str, Reading]:
        forget_compiled()
        for layer in layers:
            layer.compile(backend="eager")
        call = Call(lambda x: [layer(x) for layer in layers], rows(2)[0], scaled)
        subject = Subject(call.run, steps=steps(call))
        return {reading.metric: reading for reading in compilation.read(subject, DEVICE)}

    alike, apart = run([Layer(1) for _ in range(3)]), run([Layer(number) for number in range(3)])
    found = changed(alike, apart)
    assert found.keys() == {"recompiles"}
    assert "self.number" in found["recompiles"]


def test_one_more_operator_in_the_graph() -> None:
    """A round trip through bf16, say: fused away, no launch and no operator outside shows it (torchtitan #2196)."""
    found = changed(read(scaled, *rows(2)), read(lambda x: (x.sin().bfloat16() * 2).float(), *rows(2)))
    assert found == {"graph_operators": ""}


def test_one_region_compiled_in_two() -> None:
    halves = [torch.compile(lambda x: x.sin(), backend="eager"), torch.compile(lambda x: x * 2, backend="eager")]
    forget_compiled()
    call = Call(lambda x: halves[1](halves[0](x)), rows(2)[0], scaled)
    two = compilation.read(Subject(call.run, steps=steps(call)), DEVICE)
    found = changed(read(scaled, *rows(2)), {reading.metric: reading for reading in two})
    assert found.keys() == {"graphs"}


def test_recomputing_compiles_another_graph() -> None:
    """K48: the block runs anew in backward, under another mode, which costs a second compilation."""

    def guarded_by_mode(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * (2 if len(recomputing) < 9 else 3)

    body = torch.compile(guarded_by_mode, backend="eager")
    recomputing: list[int] = []

    def run(x: torch.Tensor, noticed: bool) -> torch.Tensor:
        recomputing.clear()

        def block(x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = body(x)
            if noticed:
                recomputing.append(1)
            return out

        return checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]

    def readings(noticed: bool) -> dict[str, Reading]:
        forget_compiled()
        call = Call(run, (*rows(2, grad=True)[0], noticed), scaled)
        return {each.metric: each for each in compilation.read(Subject(call.run, steps=steps(call)), DEVICE)}

    found = changed(readings(noticed=False), readings(noticed=True))
    assert found.keys() == {"recompiles"}
    assert "recomputing" in found["recompiles"]


def test_a_setting_that_is_left_behind_is_named() -> None:
    """K39, torchtitan #2741."""

    def readings(apply: Callable[[], None]) -> dict[str, Reading]:
        forget_compiled()
        before = settings()
        apply()
        call = Call(torch.compile(scaled, backend="eager"), rows(2)[0], scaled)
        subject = Subject(call.run, steps=steps(call), settings=before)
        return {reading.metric: reading for reading in compilation.read(subject, DEVICE)}

    healthy = readings(lambda: None)
    with torch._dynamo.config.patch(capture_scalar_outputs=False):  # put back behind the test
        mutant = readings(lambda: setattr(torch._dynamo.config, "capture_scalar_outputs", True))
    assert changed(healthy, mutant) == {
        "compiler_leaks": "compiler setting left changed: dynamo.capture_scalar_outputs: False -> True"
    }


def test_a_load_that_fails_is_named() -> None:
    """K40: a sum that was asserted for the first load binds the second."""

    def asserts(x: torch.Tensor, total: int) -> torch.Tensor:
        assert total == 8, "rows must add up to 8"
        return x.sin()

    with pytest.raises(AssertionError, match="add up to 8") as raised:
        read(asserts, (torch.ones(8), 8), (torch.ones(8), 7))
    assert "step 1 of the walk" in raised.value.__notes__[-1]


# ---- what must stay quiet ----------------------------------------------------------------------------------------


def test_comments_lines_and_folders_change_nothing(tmp_path: Any) -> None:
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
        found.append({name: reading.value for name, reading in read(names["moved"], *inputs).items()})
    assert found[0] == found[1]
    assert found[0]["graph_breaks"] == 1
    assert found[0]["recompiles"] == 1


def test_ten_times_the_same() -> None:
    first, *others = ([each.value for each in read(branching, *rows(2)).values()] for _ in range(10))
    assert others == [first] * 9


def test_the_same_under_another_hash_seed() -> None:
    """Than this process has."""
    code = (
        "from tests.measure.metrics.test_compilation import branching, read, rows\n"
        "print([(each.metric, each.value, each.note) for each in read(branching, *rows(2, 3)).values()])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "20261121"}
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    here = [(each.metric, each.value, each.note) for each in read(branching, *rows(2, 3)).values()]
    assert done.stdout.strip() == str(here)


@torch.library.custom_op("perfguard_tests::opaque_cos", mutates_args=())
def opaque_cos(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


@opaque_cos.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on loading inductor
def test_what_inductor_generates_and_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that graphs come from its code, not from its cache, which would hide how many kernels there are. Also where
    inductor cannot estimate times, as on a GPU for an unbacked size: the candidate compiles, so the guard does, too."""
    import torch._inductor.config
    from torch._inductor.scheduler import BaseSchedulerNode

    # Nothing here is about vectors. To find out which the C++ compiler knows takes it ten programs.
    monkeypatch.setattr(torch._inductor.config.cpp, "vec_isa_ok", False)

    def cannot(node: BaseSchedulerNode) -> float:
        raise RuntimeError("Could not guard on data-dependent expression")

    monkeypatch.setattr(BaseSchedulerNode, "get_estimated_runtime", cannot)

    def generated(fn: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Reading]:
        forget_compiled()
        call = Call(torch.compile(fn), rows(64)[0], fn)
        call.run()  # as the check does: loads inductor, fills the cache
        return {each.metric: each for each in compilation.read(Subject(call.run, steps=steps(call)), DEVICE)}

    fused = generated(lambda x: (x.sin().cos() * 2).float())
    assert fused["generated_kernels"].value == 1
    assert fused["library_calls"].value == 0
    assert fused["planned_bytes"].value == 2 * 64 * 4 * 4  # read once, written once
    assert not fused["generated_kernels"].portable
    # K11: an operator that the compiler cannot see into. Two kernels, and two more passes through memory.
    assert changed(fused, generated(lambda x: (opaque_cos(x.sin()) * 2).float())).keys() == {
        "generated_kernels",
        "planned_bytes",
    }
    # K08: a result twice as wide, in one kernel as before.
    assert changed(fused, generated(lambda x: (x.sin().cos() * 2).double())).keys() == {"planned_bytes"}


def test_nothing_of_an_eager_call_and_of_a_backward_case() -> None:
    call = Call(scaled, rows(2)[0], scaled)
    assert compilation.read(Subject(call.run, steps=steps(call)), DEVICE) == []
    assert compilation.read(Subject(call.run, direction="backward"), DEVICE) == []


def test_a_step_is_forward_and_backward_on_leaves_of_its_own() -> None:
    """So what is compiled, or fails, in backward only is seen; and nothing is left on the inputs."""
    x = torch.ones(2, 4, requires_grad=True)
    call = Call(torch.compile(scaled, backend="eager"), (x,), scaled, walk=(lambda: (x,), (x.detach(),)))
    own, prepared, without = (step() for step in steps(call))
    assert [len(each) for each in (own, prepared)] == [1, 1]  # type: ignore[arg-type]
    assert without is None
    assert x.grad is None
