"""Calls that are followed on targets that are not here, without running or compiling a kernel."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from perfguard._compat.triton_internals import pinned, tuned_configurations
from perfguard.measure.binaries import source_hash
from perfguard.measure.binaries.call_binaries import Binaries, named
from perfguard.measure.binaries.launch_recorder import Recording, constants_of
from perfguard.measure.binaries.source_hash import Sources
from perfguard.measure.binaries.targets import target_of
from perfguard.model.call import Call
from tests.measure.binaries.test_kernel_code import X, replaced
from tests.measure.metrics.binaries import SCALE, TUNED, Reader, load

BOTH = ("sm_90", "gfx942")


def recording(reader: Reader, call: Call, target: str = "sm_90") -> Recording:
    (found,) = reader.follow(call, (target,))
    assert found.recording.problem == ""
    return found.recording


def test_what_torch_does_to_memory_beside_the_kernels(reader: Reader) -> None:
    assert recording(reader, reader.call(SCALE, X)).memory_operators == {}
    busy = replaced(
        SCALE,
        ("empty_like(x)", "zeros_like(x.float().bfloat16().float())"),
        ("(x, out,", "(x.t().contiguous(), out,"),
        ("2.0, BLOCK", "float(x[0, 0]), BLOCK"),
    )
    operators = recording(reader, reader.call(busy, X)).memory_operators["forward"]
    names = [name.removeprefix("aten.") for name in operators]
    assert sorted(names) == ["_local_scalar_dense", "_to_copy", "_to_copy", "clone", "zeros_like"]


def test_every_named_configuration_is_followed_and_the_chosen_one_recognised(reader: Reader) -> None:
    """They may depend on the target."""

    def configurations() -> list[dict[str, int]]:
        hopper = torch.cuda.get_device_capability() == (9, 0)
        return [{"block": block} for block in (2048, 1024, 65536)] if hopper else []

    hopper, mi300 = reader.follow(reader.call(SCALE, X, configurations=configurations), BOTH)
    launches = named(hopper.recording.launches)
    assert [name for name, _ in launches] == ["scale_kernel", "scale_kernel@0", "scale_kernel@2"]
    assert [constants_of(launch)["BLOCK"] for _, launch in launches] == [1024, 2048, 65536]
    assert launches[0][1].twin == 1
    assert [name for name, _ in named(mi300.recording.launches)] == ["scale_kernel"]


def test_tuners_are_counted_over_a_walk_and_all_their_configurations_followed(reader: Reader) -> None:
    walk = tuple((X[:count],) for count in (1, 2, 7, 8, 16, 33, 48, 63))  # token counts
    found = recording(reader, reader.call(TUNED.replace('key=["width"]', 'key=["n"]'), X, walk=walk))
    assert [name for name, _ in named(found.launches)] == ["scale_kernel@0", "scale_kernel@1"]
    assert len(found.tunings) == 9


class Launcher:
    """In place of a compiled kernel: notes the tile that it is launched with."""

    def __init__(self, ran: list[int]) -> None:
        self.ran = ran

    def run(self, *args: Any, BLOCK: int, **kwargs: Any) -> None:
        self.ran.append(BLOCK)


def test_the_choice_of_a_tuner_is_read_from_it(tmp_path: Path) -> None:
    """Triton's own tuner, whose launches and clock are replaced: no kernel can run here."""
    tuner = load(tmp_path, TUNED).__globals__["scale_kernel"]
    ran: list[int] = []
    tuner.fn = Launcher(ran)
    tuner._do_bench = lambda kernel, quantiles: (kernel(), [ran[-1] / 256.0] * 3)[1]

    def run() -> None:
        tuner.run(X, X, X.numel(), 128, 2.0, grid=(1,), warmup=False)

    run()
    assert tuned_configurations(run)["scale_kernel"].startswith("BLOCK: 256, num_warps: 2")
    with pinned(1):
        run()
    assert ran[-1] == 1024


def test_a_call_that_makes_tensors_of_values_on_the_chip_is_followed(reader: Reader) -> None:
    """No dispatch mode sees `torch.tensor`, and a torch without a GPU has no sync debug mode."""
    probe = (
        "    mode = torch.cuda.get_sync_debug_mode()\n    torch.cuda.set_sync_debug_mode('error')\n"
        "    x = x * torch.tensor([2.0], device=x.device) + torch.as_tensor(1.0, device='cuda')\n"
        "    torch.cuda.set_sync_debug_mode(mode)\n    out ="
    )
    assert len(recording(reader, reader.call(SCALE.replace("    out =", probe), X)).launches) == 1


def test_kernels_inside_a_compiled_function_are_followed(reader: Reader) -> None:
    function = load(reader.folder, SCALE)
    compiled = torch.compile(lambda x: function(x.sin()) + 1, fullgraph=True, backend="eager")
    assert len(recording(reader, Call(compiled, (X,), lambda *_, **__: None), "gfx942").launches) == 1
    assert torch.equal(compiled(X), X.sin() * 2 + 1)  # and compiled it is again


def test_forward_and_backward_have_their_own_kernels(reader: Reader) -> None:
    source = SCALE.replace("def call(", "def forward(") + (
        "\n\nclass Scale(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return forward(x)\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return forward(grad, 2048)\n\n\n"
        "def call(x):\n    return Scale.apply(x)\n"
    )
    call = reader.call(source, X.clone().requires_grad_())
    for direction, block in (("forward", 1024), ("backward", 2048)):
        (found,) = reader.follow(call, direction=direction)  # type: ignore[arg-type]
        assert [constants_of(launch)["BLOCK"] for launch in found.recording.launches] == [block]


def test_nothing_of_a_simulated_target_stays_but_the_modules_that_were_read(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each target is followed in a process of its own. The first one's reading of modules serves all others."""
    source = SCALE.replace("def call(", "LEARNT = []\n\n\ndef call(").replace(
        "    out =", "    LEARNT.append(torch.cuda.get_device_capability())\n    out ="
    )
    function, read = load(reader.folder, source), reader.folder / "read.txt"
    described: Callable[[ModuleType], source_hash.Described] = source_hash._described

    def noted(module: ModuleType) -> source_hash.Described:
        with read.open("a") as file:
            file.write(f"{module.__name__}\n")
        return described(module)

    monkeypatch.setattr(source_hash, "_described", noted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # one after the other
    Binaries(BOTH, reader.compiler).of(Call(function, (X,), lambda *_, **__: None), reader.device)
    assert read.read_text() == f"{function.__module__}\n"
    assert function.__globals__["LEARNT"] == []
    assert X.device.type == "cpu"


def test_a_call_that_takes_too_long_or_ends_its_process_has_that_problem(reader: Reader) -> None:
    from perfguard.measure.binaries.absent_gpu import record_elsewhere

    for ending, problem in (
        ("while True: pass", "took longer than 0.5 s"),
        ("os._exit(3)", "its process ended with 3"),
        ("os.kill(os.getpid(), 9)", "its process ended with -9"),  # as where memory runs out
    ):
        source = SCALE.replace("    out =", f"    {ending}\n    out =").replace(
            "import torch\n", "import os, torch\n", 1
        )
        call = Call(load(reader.folder, source), (X,), lambda *_, **__: None)
        (recording,) = record_elsewhere(call, [target_of("sm_90")], 0.5, Sources())
        assert (recording.problem, recording.passing) == (problem, True)


def test_ctrl_c_during_a_fork_is_not_lost(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised in a hook of fork is dropped; Python says so on stderr at most."""
    from perfguard.measure.binaries import absent_gpu

    original, lost = os.fork, []

    def fork() -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            lost.append(True)
        return original()

    call = Call(load(reader.folder, SCALE), (X,), lambda *_, **__: None)
    monkeypatch.setattr(os, "fork", fork)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            absent_gpu.record_elsewhere(call, [target_of("sm_90")], 60.0, Sources())
    finally:
        signal.signal(signal.SIGINT, before)
    assert not lost
