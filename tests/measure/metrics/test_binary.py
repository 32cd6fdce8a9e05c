"""What kernels are on targets that are not here, and the change that each metric alone has to tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from perfguard.judge.exact import judge_exact
from perfguard.measure.binaries import source_hash
from perfguard.measure.binaries.call_binaries import Binaries
from perfguard.measure.binaries.forked_recorder import record_elsewhere
from perfguard.measure.binaries.targets import target_of
from perfguard.measure.metrics import binary
from perfguard.measure.replay import Followed
from perfguard.model.call import Call
from perfguard.model.records import Word
from perfguard.model.units import Unit
from tests.measure.metrics.binaries import GLUON, PRODUCT, SCALE, TUNED, Reader, changed, load

BOTH = ("sm_90", "gfx942")
X = torch.randn(64, 128)
A, B = torch.randn(64, 512, dtype=torch.bfloat16), torch.randn(512, 64, dtype=torch.bfloat16)
UNALIGNED = '@triton.jit(do_not_specialize_on_alignment=["{}"])'


def reasons(reader: Reader, source: str, mutant: str, *args: torch.Tensor, targets: tuple[str, ...]) -> dict[str, str]:
    """Metric -> what a verdict of CHANGED says of the mutant."""
    verdicts = changed(reader.read(source, *args, targets=targets), reader.read(mutant, *args, targets=targets))
    assert {verdict.word for verdict in verdicts.values()} <= {Word.CHANGED, Word.FASTER}
    return {metric: verdict.reason for metric, verdict in verdicts.items() if verdict.word is Word.CHANGED}


def test_every_target_tells_what_the_kernel_is(reader: Reader) -> None:
    readings = reader.read(SCALE, X, targets=BOTH)
    for target in BOTH:
        values = {name.partition(".")[2]: each.value for name, each in readings.items() if each.target == target}
        assert values["load_bits"] == values["store_bits"] == {"scale_kernel": 128.0}
        assert values["spills"] == values["stack_bytes"] == {"scale_kernel": 0}
        assert values["unfit"] == {}
        assert values["special"] == {"scale_kernel": "none"}
        assert isinstance(values["registers"], dict)
        assert 0 < int(values["registers"]["scale_kernel"]) < 64
    assert readings["sm_90.resident_warps"].value == {"scale_kernel": 64}
    assert readings["sm_90.binary"].value != readings["gfx942.binary"].value
    assert readings["sm_90.stack_bytes"].unit is Unit.BYTES


def test_a_larger_tile_that_spills_is_told_with_its_figures(reader: Reader) -> None:
    told = reasons(reader, SCALE, SCALE.replace("block=1024", "block=32768"), X, targets=("sm_90",))
    assert set(told) == {"sm_90.spills", "sm_90.stack_bytes", "sm_90.resident_warps"}
    assert told["sm_90.spills"].startswith("sm_90.spills scale_kernel 0 -> ")
    assert told["sm_90.stack_bytes"].startswith("sm_90.stack_bytes scale_kernel 0 B -> ")
    assert told["sm_90.resident_warps"].startswith("sm_90.resident_warps scale_kernel 64 -> ")


@pytest.mark.parametrize(("pointer", "metric"), [("x_ptr", "load_bits"), ("out_ptr", "store_bits")])
def test_lost_divisibility_is_told_by_the_width_of_accesses_alone(reader: Reader, pointer: str, metric: str) -> None:
    mutant = SCALE.replace("@triton.jit", UNALIGNED.format(pointer))
    told = reasons(reader, SCALE, mutant, X, targets=BOTH)
    assert told == {
        f"{target}.{metric}": f"{target}.{metric} scale_kernel 128 -> 32 (-75.0 %)" for target in BOTH
    }  # fmt: skip


ASKED = {
    "a barrier": ("\n    tl.store(", "\n    tl.debug_barrier()\n    tl.store(", "1 barrier"),
    "a hint": (
        "mask=at < n)\n    tl.store",
        'mask=at < n, eviction_policy="evict_first")\n    tl.store',
        "1 load evict_first",
    ),
    "a volatile load": ("mask=at < n)\n    tl.store", "mask=at < n, volatile=True)\n    tl.store", "1 load volatile"),
    "an atomic": ("tl.store(out", "tl.atomic_add(out", "1 atomic_rmw fadd acq_rel gpu"),
    "any value": ("@triton.jit", '@triton.jit(do_not_specialize=["n"])', "any n"),
}


@pytest.mark.parametrize(("plain", "asking", "text"), ASKED.values(), ids=ASKED)
def test_what_is_no_longer_asked_for_is_told(reader: Reader, plain: str, asking: str, text: str) -> None:
    assert plain in SCALE
    told = reasons(reader, SCALE.replace(plain, asking, 1), SCALE, X, targets=BOTH)
    for target in BOTH:
        assert told[f"{target}.asked"].startswith(f"{target}.asked scale_kernel ")
        assert text in told[f"{target}.asked"]
        assert "none" in told[f"{target}.asked"]


def test_another_tile_asks_for_the_same(reader: Reader) -> None:
    asking = SCALE.replace("\n    tl.store(", "\n    tl.debug_barrier()\n    tl.store(")
    told = reasons(reader, asking, asking.replace("block=1024", "block=256"), X, targets=BOTH)
    assert not any(metric.endswith("asked") for metric in told)


def test_more_threads_than_a_block_may_have(reader: Reader) -> None:
    told = reasons(reader, SCALE, SCALE.replace("num_warps=4", "num_warps=32"), X, targets=BOTH)
    assert told["gfx942.unfit"] == "gfx942.unfit scale_kernel 2,048 threads, limit 1,024"
    assert "sm_90.unfit" not in told  # 32 warps of 32 threads


def test_a_tile_that_the_chip_has_no_room_for(reader: Reader) -> None:
    mutant = PRODUCT.replace("D=32", "D=128").replace("num_stages=2", "num_stages=4")
    told = reasons(reader, PRODUCT, mutant, A, B, targets=("gfx942",))
    assert told["gfx942.unfit"] == "gfx942.unfit product_kernel needs 96 KB, gfx942 has 64 KB"


def test_matrix_units_left_unused(reader: Reader) -> None:
    summed = "total + tl.sum(a[:, :, None].to(tl.float32) * b[None, :, :].to(tl.float32), 1)"
    small = PRODUCT.replace("M=64, N=64, D=32", "M=16, N=16, D=16")
    told = reasons(reader, PRODUCT, small.replace("tl.dot(a, b, total)", summed), A, B, targets=("sm_90",))
    before, after = told["sm_90.special"].removeprefix("sm_90.special product_kernel ").split(" -> ")
    # Whether tiles are still copied asynchronously is the compiler's choice: Triton 3.9 does, 3.6 does not.
    assert "HGMMA" in before.split()
    assert "HGMMA" not in after.split()


def test_float64_by_accident_is_told_though_the_chip_holds_as_many_warps(reader: Reader) -> None:
    """No other gate moves, though the registers double."""
    mutant = SCALE.replace("x * factor", "x.to(tl.float64) * factor + 0.1")
    told = reasons(reader, SCALE, mutant, X, targets=BOTH)
    assert set(told) == {"sm_90.fp64", "gfx942.fp64"}
    for target in BOTH:
        assert told[f"{target}.fp64"].startswith(f"{target}.fp64 scale_kernel 0 -> ")


def test_what_does_not_compile_is_told_without_folders(reader: Reader) -> None:
    told = reasons(reader, SCALE, SCALE.replace("x * factor", "x @ factor"), X, targets=("gfx942",))
    assert told["gfx942.unfit"].startswith("gfx942.unfit scale_kernel does not compile: ")
    assert "/" not in told["gfx942.unfit"].replace("and/or", "")


def test_a_call_that_cannot_be_followed_is_told(reader: Reader) -> None:
    mutant = SCALE.replace(
        "    out =", "    raise ValueError('no kernel for ' + torch.cuda.get_device_name())\n    out ="
    )
    told = reasons(reader, SCALE, mutant, X, targets=("gfx942",))
    assert told == {"gfx942.unfit": "gfx942.unfit call ValueError: no kernel for MI300X"}


def test_a_comment_costs_and_changes_nothing(reader: Reader) -> None:
    before = reader.read(SCALE, X)
    compiled = reader.compiler.compiled
    # Under another name and in another file than before, but for the second reading: that finds the first one's.
    commented = SCALE.replace("    x = tl.load", "    # every value\n    x = tl.load")
    after = reader.read(commented, X)
    assert {name: each.value for name, each in after.items()} == {name: each.value for name, each in before.items()}
    assert reader.compiler.compiled == compiled + 1


def test_every_named_configuration_is_compiled_and_the_chosen_one_recognised(reader: Reader) -> None:
    readings = reader.read(SCALE, X, configurations=[{"block": 2048}, {"block": 1024}, {"block": 65536}])
    spills = readings["sm_90.spills"].value
    assert isinstance(spills, dict)
    assert list(spills) == ["scale_kernel", "scale_kernel@0", "scale_kernel@2"]
    assert spills["scale_kernel"] == 0
    assert int(spills["scale_kernel@2"]) > 0
    chosen = readings["sm_90.configuration"].value
    assert isinstance(chosen, dict)
    assert str(chosen["scale_kernel"]).startswith("BLOCK=1024 num_warps=4 ")
    assert str(chosen["scale_kernel"]).endswith("; configuration 1")


def test_a_call_that_makes_tensors_of_values_on_the_chip_is_followed(reader: Reader) -> None:
    """No dispatch mode hears of `torch.tensor`, and a torch without a GPU knows no sync debug mode."""
    probe = (
        "    mode = torch.cuda.get_sync_debug_mode()\n    torch.cuda.set_sync_debug_mode('error')\n"
        "    x = x * torch.tensor([2.0], device=x.device) + torch.as_tensor(1.0, device='cuda')\n"
        "    torch.cuda.set_sync_debug_mode(mode)\n    out ="
    )
    readings = reader.read(SCALE.replace("    out =", probe), X)
    assert readings["sm_90.unfit"].value == {}
    assert readings["sm_90.spills"].value == {"scale_kernel": 0}


def test_kernels_inside_a_compiled_function_are_followed(reader: Reader) -> None:
    """Compiled as one graph, which no compiler makes while a dispatch mode listens."""
    function = load(reader.folder, SCALE)
    compiled = torch.compile(lambda x: function(x.sin()) + 1, fullgraph=True, backend="eager")
    call = Call(compiled, (X,), lambda *_, **__: None)
    readings = reader.read_call(call, ("gfx942",))
    assert readings["gfx942.unfit"].value == {}
    assert readings["gfx942.load_bits"].value == {"scale_kernel": 128.0}
    assert torch.equal(compiled(X), X.sin() * 2 + 1)  # and compiled it is again


def test_modules_are_read_once_for_all_targets(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each target is followed in a process of its own; what the first one read the others know."""
    function, read = load(reader.folder, SCALE), reader.folder / "read.txt"
    described = source_hash._described

    def told(module: ModuleType) -> source_hash.Described:
        with read.open("a") as file:
            file.write(f"{module.__name__}\n")
        return described(module)

    monkeypatch.setattr(source_hash, "_described", told)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # one after the other
    binaries = Binaries(BOTH, reader.compiler)
    binaries.of(Followed(Call(function, (X,), lambda *_, **__: None)), reader.device)
    assert read.read_text() == f"{function.__module__}\n"


def test_configurations_may_depend_on_the_target(reader: Reader) -> None:
    def configurations() -> list[dict[str, int]]:
        return [{"block": 2048}] if torch.cuda.get_device_capability() == (9, 0) else []

    readings = reader.read(SCALE, X, targets=BOTH, configurations=configurations)
    assert list(readings["sm_90.spills"].value) == ["scale_kernel", "scale_kernel@0"]  # type: ignore[arg-type]
    assert list(readings["gfx942.spills"].value) == ["scale_kernel"]  # type: ignore[arg-type]


def test_forward_and_backward_have_their_own_kernels(reader: Reader) -> None:
    source = SCALE.replace("def call(", "def forward(") + (
        "\n\nclass Scale(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return forward(x)\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return forward(grad, 2048)\n\n\n"
        "def call(x):\n    return Scale.apply(x)\n"
    )
    x = X.clone().requires_grad_()
    blocks = {
        direction: str(reader.read(source, x, direction=direction)["sm_90.configuration"].value)
        for direction in ("forward", "backward")
    }
    assert "BLOCK=1024" in blocks["forward"]
    assert "BLOCK=2048" in blocks["backward"]


def test_a_call_without_kernels_has_nothing_to_tell_but_that(reader: Reader) -> None:
    """A call that has lost its kernels on a chip that is not here would be as good as before, by all other readings."""
    found = reader.read("def call(x):\n    return x * 2\n", X)
    assert {name: reading.value for name, reading in found.items()} == {"sm_90.asked": {}}
    assert found["sm_90.asked"].tells_of_nothing
    verdict = judge_exact(found["sm_90.asked"], {"double": "none"})
    assert (verdict.word, verdict.reason) == (Word.CHANGED, "sm_90.asked - double")


PROGRAM = """
import json, sys
from pathlib import Path
import torch
from tests.measure.metrics.binaries import SCALE, Reader
reader = Reader(Path(sys.argv[1]))
readings = reader.read(SCALE, torch.ones(64, 128), targets=("sm_90", "gfx942"))
print(json.dumps({name: reading.value for name, reading in readings.items()}))
reader.compiler.close()
"""


def test_neither_hash_seed_nor_folder_moves_a_reading(reader: Reader, tmp_path: Path) -> None:
    """From what they are in this process."""
    environment = os.environ | {"PYTHONHASHSEED": "20261121", "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "another" / "checkout")]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    readings = reader.read(SCALE, torch.ones(64, 128), targets=BOTH)
    assert json.loads(done.stdout) == json.loads(json.dumps({name: each.value for name, each in readings.items()}))
    assert len(readings) == 34


def test_on_a_gpu_its_own_architecture_is_read_in_place(reader: Reader) -> None:
    """A device that says it is a GPU: nothing is forked, nothing pretended, and nothing launched."""
    source = SCALE.replace('    if x.device.type == "cpu":\n        return x * 2.0\n', "")
    hopper = SimpleNamespace(architecture="sm_90")
    gpu = SimpleNamespace(torch_device=torch.device("cuda"), holds_cpu_tensors=False, identity=hopper)
    call = Call(load(reader.folder, source), (X,), lambda *_, **__: None)
    binaries, followed = Binaries(("gfx942",), reader.compiler), Followed(call)
    (found,) = binaries.of(followed, gpu)  # type: ignore[arg-type]
    assert found.target.name == "sm_90"
    assert [kernel.name for kernel in found.kernels["forward"]] == ["scale_kernel"]
    assert found.kernels["forward"][0].facts.load_bits == 128.0
    assert found.recording.problem == ""
    subject = SimpleNamespace(binaries=binaries, followed=followed, direction="forward")
    read = {each.metric for each in binary.read(subject, gpu)}  # type: ignore[arg-type]
    assert "sm_90.spills" in read
    assert not read & {"sm_90.memory_operators", "sm_90.unchecked"}  # the GPU counts its own, and has run the kernel


def test_ten_recordings_are_one(reader: Reader) -> None:
    call = Call(load(reader.folder, PRODUCT), (A, B), lambda *_, **__: None)
    targets = [target_of("gfx942")] * 10
    recorded = record_elsewhere(lambda recorder: recorder.follow(Followed(call)), targets, 60.0)
    assert len(recorded) == 10
    assert len(recorded[0].launches) == 1
    assert all(each == recorded[0] for each in recorded)


def test_what_a_call_learns_of_a_target_does_not_stay(reader: Reader) -> None:
    source = SCALE.replace("def call(", "LEARNT = []\n\n\ndef call(").replace(
        "    out =", "    LEARNT.append(torch.cuda.get_device_capability())\n    out ="
    )
    function = load(reader.folder, source)
    reader.read_call(Call(function, (X,), lambda *_, **__: None), ("gfx942",))
    assert function.__globals__["LEARNT"] == []
    assert X.device.type == "cpu"


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("torch.empty_like(x)", "torch.zeros_like(x)", "none -> 1 zeros_like"),
        ("(x, out,", "(x.t().contiguous(), out,", "none -> 1 clone"),
        ("(x, out,", "(x.float().bfloat16(), out,", "none -> 1 _to_copy"),
        ("2.0, BLOCK", "float(x[0, 0]), BLOCK", "none -> 1 _local_scalar_dense"),
    ],
    ids=["a fill", "a copy", "a conversion", "a read of the host"],
)
def test_what_torch_does_to_memory_beside_the_kernels(reader: Reader, before: str, after: str, what: str) -> None:
    assert SCALE.count(before) == 1
    told = reasons(reader, SCALE, SCALE.replace(before, after), X, targets=("sm_90",))
    assert told["sm_90.memory_operators"] == f"sm_90.memory_operators {what}"


@pytest.mark.parametrize(
    ("before", "after"),
    [("x + 1.0, mask", "x + 2.0, mask"), ("n, BLOCK: gl", "n, more, BLOCK: gl"), ("+ 511", "+ 1023")],
    ids=["another constant", "another argument", "another grid"],
)
def test_what_nothing_interprets_and_nobody_ran_is_told_when_it_changes(
    reader: Reader, before: str, after: str
) -> None:
    assert GLUON.count(before) == 1
    mutant = GLUON.replace(before, after).replace(
        "x.numel(), BLOCK", "x.numel(), 3, BLOCK" if "more" in after else "x.numel(), BLOCK"
    )
    told = reasons(reader, GLUON, mutant, X, targets=("sm_90",))
    assert told["sm_90.unchecked"].startswith("sm_90.unchecked shift_kernel ")


def test_names_and_comments_do_not_move_what_nobody_ran(reader: Reader) -> None:
    mutant = (
        GLUON.replace("    at = gl", "    # where\n\n    place = gl")
        .replace(" at,", " place,")
        .replace(" at ", " place ")
    )
    mutant = mutant.replace("=at ", "=place ")
    assert mutant != GLUON
    assert reasons(reader, GLUON, mutant, X, targets=("sm_90",)) == {}


def test_what_the_interpreter_runs_is_checked_there(reader: Reader) -> None:
    assert "sm_90.unchecked" not in reader.read(SCALE, X, targets=("sm_90",))


def test_the_limits_that_lanes_hold_are_these(reader: Reader) -> None:
    """A report of a pull request is judged by no softer limits than the metrics write."""
    from perfguard.measure.metrics import all_limits_of_targets

    walk = tuple((X[:count],) for count in (1, 63))
    readings = reader.read(TUNED, X, walk=walk) | reader.read(SCALE, X, configurations={"default": {"block": 1024}})
    readings |= reader.read(GLUON, X, targets=("sm_90",))

    def limits(of: Any) -> tuple[Any, ...]:
        return of.better, of.gated, of.tolerance, of.unrecorded

    written = {name.partition(".")[2]: limits(each) for name, each in readings.items()}
    assert written == {name: limits(each) for name, each in all_limits_of_targets().items()}
