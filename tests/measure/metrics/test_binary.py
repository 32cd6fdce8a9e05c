"""What kernels are on targets that are not here, and the harm that each metric reports."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from perfguard._compat.triton_internals import pinned, tuned_configurations
from perfguard.judge.exact import judge_exact
from perfguard.measure.binaries import source_hash
from perfguard.measure.binaries.call_binaries import Binaries
from perfguard.measure.binaries.source_hash import Sources
from perfguard.measure.binaries.targets import target_of
from perfguard.measure.metrics import binary
from perfguard.model.call import Call
from perfguard.model.records import Word
from perfguard.model.units import Unit
from tests.measure.metrics.binaries import GLUON, PRODUCT, SCALE, TUNED, Reader, changed, load

BOTH = ("sm_90", "gfx942")
X = torch.randn(64, 128)
A, B = torch.randn(64, 512, dtype=torch.bfloat16), torch.randn(512, 64, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One compiler and one cache for all tests."""
    pytest.importorskip("triton")
    made = Reader(tmp_path_factory.mktemp("binaries"))
    yield made
    made.compiler.close()


def parts(reading: Any) -> dict[str, Any]:
    assert isinstance(reading.value, dict)
    return reading.value


def reasons(reader: Reader, source: str, mutant: str, *args: torch.Tensor, targets: tuple[str, ...]) -> dict[str, str]:
    """Metric -> the reason of a CHANGED verdict on the mutant."""
    verdicts = changed(reader.read(source, *args, targets=targets), reader.read(mutant, *args, targets=targets))
    assert {verdict.word for verdict in verdicts.values()} <= {Word.CHANGED, Word.FASTER}
    return {metric: verdict.reason for metric, verdict in verdicts.items() if verdict.word is Word.CHANGED}


def replaced(source: str, *pairs: tuple[str, str]) -> str:
    for before, after in pairs:
        assert before in source
        source = source.replace(before, after)
    return source


def test_every_target_describes_the_kernel(reader: Reader) -> None:
    readings = reader.read(SCALE, X, targets=BOTH)
    for target in BOTH:
        values = {name.partition(".")[2]: each.value for name, each in readings.items() if each.target == target}
        assert values["load_bits"] == values["store_bits"] == {"scale_kernel": 128.0}
        assert values["spills"] == values["stack_bytes"] == {"scale_kernel": 0}
        assert values["unfit"] == {}
        assert values["special"] == values["asked"] == {"scale_kernel": "none"}
        assert 0 < parts(readings[f"{target}.registers"])["scale_kernel"] < 64
        assert len(values) == 17
    assert readings["sm_90.resident_warps"].value == {"scale_kernel": 64}
    assert readings["sm_90.binary"].value != readings["gfx942.binary"].value
    assert readings["sm_90.stack_bytes"].unit is Unit.BYTES


UNALIGNED = '@triton.jit(do_not_specialize_on_alignment=["{}"])'
SUMMED = "total + tl.sum(a[:, :, None].to(tl.float32) * b[None, :, :].to(tl.float32), 1)"
UNKNOWN_CHIP = "    raise ValueError('no kernel for ' + torch.cuda.get_device_name())\n    out ="


@dataclass(frozen=True)
class Mutant:
    """Changes of a source, and the reasons of the verdicts on it by metric, as patterns."""

    pairs: tuple[tuple[str, str], ...]
    reasons: dict[str, str]
    alone: bool = True  # no other metric reports it
    source: str = SCALE


MUTANTS = {
    "spills": Mutant(
        (("block=1024", "block=32768"),),
        {"sm_90.spills": "0 -> *", "sm_90.stack_bytes": "0 B -> *", "sm_90.resident_warps": "64 -> *"},
    ),
    "divisibility of loads": Mutant(
        (("@triton.jit", UNALIGNED.format("x_ptr")),),
        {f"{target}.load_bits": "128 -> 32 (-75.0 %)" for target in BOTH},
    ),
    "divisibility of stores": Mutant(
        (("@triton.jit", UNALIGNED.format("out_ptr")),),
        {f"{target}.store_bits": "128 -> 32 (-75.0 %)" for target in BOTH},
    ),
    "a barrier less": Mutant(
        (("    tl.debug_barrier()\n", ""),),
        {f"{target}.asked": "1 barrier -> none" for target in BOTH},
        source=SCALE.replace("\n    tl.store(", "\n    tl.debug_barrier()\n    tl.store("),
    ),
    "too many threads": Mutant(  # for AMD alone, whose warps are twice as wide
        (("num_warps=4", "num_warps=32"),), {"gfx942.unfit": "2,048 threads, limit 1,024"}, alone=False
    ),
    "too much shared memory": Mutant(
        (("D=32", "D=128"), ("num_stages=2", "num_stages=4")),
        {"gfx942.unfit": "needs 96 KB, gfx942 has 64 KB"},
        source=PRODUCT,
        alone=False,
    ),
    "matrix units unused": Mutant(
        (("M=64, N=64, D=32", "M=16, N=16, D=16"), ("tl.dot(a, b, total)", SUMMED)),
        {"sm_90.special": "*HGMMA* -> *"},
        source=PRODUCT,
        alone=False,
    ),
    "float64": Mutant(
        (("x * factor", "x.to(tl.float64) * factor + 0.1"),), {f"{target}.fp64": "0 -> *" for target in BOTH}
    ),
    "no compilation": Mutant((("x * factor", "x @ factor"),), {"gfx942.unfit": "does not compile: *"}, alone=False),
    "an error": Mutant((("    out =", UNKNOWN_CHIP),), {"gfx942.unfit": "ValueError: no kernel for MI300X"}),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_reported_with_its_figures(reader: Reader, mutant: Mutant) -> None:
    args = (A, B) if mutant.source == PRODUCT else (X,)
    targets = tuple(sorted({metric.partition(".")[0] for metric in mutant.reasons}))
    found = reasons(reader, mutant.source, replaced(mutant.source, *mutant.pairs), *args, targets=targets)
    assert not mutant.alone or set(found) == set(mutant.reasons)
    for metric, pattern in mutant.reasons.items():
        subject = "call" if "ValueError" in pattern else "product_kernel" if len(args) == 2 else "scale_kernel"
        assert fnmatchcase(found[metric], f"{metric} {subject} {pattern}"), found[metric]
        assert "/" not in found[metric].replace("and/or", "")  # folders differ between machines


KERNEL = SCALE[SCALE.index("@triton.jit") : SCALE.index("\n\ndef call")]
ASKING: dict[str, tuple[tuple[str, str], str]] = {
    "plain": (("", ""), "none"),
    "barrier": (("    tl.store(", "    tl.debug_barrier()\n    tl.store("), "1 barrier"),
    "hint": (("mask=at < n)\n", 'mask=at < n, eviction_policy="evict_first")\n'), "1 load evict_first"),
    "volatile": (("mask=at < n)\n", "mask=at < n, volatile=True)\n"), "1 load volatile"),
    "atomic": (("tl.store(out", "tl.atomic_add(out"), "1 atomic_rmw fadd acq_rel gpu"),
    "any_value": (("@triton.jit", '@triton.jit(do_not_specialize=["n"])'), "any n"),
}


def test_what_an_author_asks_for_is_read_from_the_first_code(reader: Reader) -> None:
    kernels = [
        KERNEL.replace(*change, 1).replace("scale_kernel", f"{name}_kernel") for name, (change, _) in ASKING.items()
    ]
    calls = "".join(f"    {name}_kernel[(8,)](x, out, x.numel(), 2.0, BLOCK=block)\n" for name in ASKING)
    source = SCALE[: SCALE.index("@triton.jit")] + "\n\n".join(kernels)
    source += f"\n\ndef call(x, block=1024):\n    out = torch.empty_like(x)\n{calls}    return out\n"
    wanted = {f"{name}_kernel": text for name, (_, text) in ASKING.items()}
    for text in (source, source.replace("block=1024", "block=256")):  # another tile asks for the same
        readings = reader.read(text, X, targets=BOTH)
        assert readings["sm_90.asked"].value == readings["gfx942.asked"].value == wanted


def test_what_torch_does_to_memory_beside_the_kernels(reader: Reader) -> None:
    assert reader.read(SCALE, X)["sm_90.memory_operators"].value == "none"
    busy = replaced(
        SCALE,
        ("empty_like(x)", "zeros_like(x.float().bfloat16().float())"),
        ("(x, out,", "(x.t().contiguous(), out,"),
        ("2.0, BLOCK", "float(x[0, 0]), BLOCK"),
    )
    text = "1 _local_scalar_dense, 2 _to_copy, 1 clone, 1 zeros_like"
    assert reader.read(busy, X)["sm_90.memory_operators"].value == text


def test_a_kernel_that_nothing_interprets_and_nobody_ran_is_reported_when_it_changes(reader: Reader) -> None:
    """Gluon."""
    mutants = {
        "constant": replaced(GLUON, ("x + 1.0, mask", "x + 2.0, mask")),
        "argument": replaced(
            GLUON, ("n, BLOCK: gl", "n, more, BLOCK: gl"), ("x.numel(), BLOCK", "x.numel(), 3, BLOCK")
        ),
        "grid": replaced(GLUON, ("+ 511", "+ 1023")),
    }
    for mutant in mutants.values():
        found = reasons(reader, GLUON, mutant, X, targets=("sm_90",))
        assert found["sm_90.unchecked"].startswith("sm_90.unchecked shift_kernel ")
    renamed = replaced(
        GLUON,
        ("    at = gl", "    # where\n\n    place = gl"),
        ("_ptr + at", "_ptr + place"),
        ("mask=at", "mask=place"),
    )
    assert reasons(reader, GLUON, renamed, X, targets=("sm_90",)) == {}
    assert "sm_90.unchecked" not in reader.read(SCALE, X)  # the interpreter runs and checks it


# Tiles of 4 rows by 32 columns of float32: a row is four whole sectors.
WAYS = {
    "rows": ("r[:, None] * stride + c[None, :]", 32.0),
    "columns": ("r[:, None] + c[None, :] * stride", 16.0),  # runs of 4 values, half a sector
    "one row down a column": ("0 * r[:, None] + c[None, :] * stride", 4.0),
    "every second": ("r[:, None] * stride + 2 * c[None, :]", 16.0),
    "reversed": ("r[:, None] * stride + 31 - c[None, :]", 32.0),
    "transposed": ("tl.trans(c[:, None] + r[None, :] * stride)", 32.0),
    "clamped": ("r[:, None] * stride + tl.minimum(c, n)[None, :]", 32.0),
    # Rows that an index names are near along their columns; the index itself, four values, is half a sector.
    "gathered": ("tl.load(index + r)[:, None] * stride + c[None, :]", round(32 * (512 + 16) / (512 + 32), 1)),
    "wrapped rows": ("(r % n)[:, None] * stride + c[None, :]", 32.0),
    "hinted": ("r[:, None] * stride + tl.max_contiguous(c % n, 32)[None, :]", 32.0),
    "hidden": ("r[:, None] * stride + (c % n)[None, :]", None),
}
HEAD = """
import torch
import triton
import triton.language as tl


@triton.jit
def store_kernel(out, index, n, stride, WAY: tl.constexpr):
    r, c = tl.arange(0, 4), tl.arange(0, 32)
"""
TAIL = """
    tl.store(out + at, 1.0)


@triton.jit
def sum_kernel(x, out, n, stride):
    r, c = tl.arange(0, 4), tl.arange(0, 32)
    total = tl.zeros((4, 32), tl.float32)
    at = x + r[:, None] * stride + c[None, :]
    for _ in range(0, n, 32):
        total += tl.load(at)
        at += 32
    tl.store(out + c, tl.sum(total, 0))


def call(x, way="rows"):
    out = torch.empty_like(x)
    if x.device.type == "cpu":
        return out.fill_(1.0)
    index = torch.zeros(4, dtype=torch.int32, device=x.device)
    store_kernel[(1,)](out, index, 32, x.stride(0), way)
    sum_kernel[(1,)](x, out, x.shape[1], x.stride(0))
    return out
"""
SECTORS = HEAD + "".join(f"    if WAY == {way!r}:\n        at = {at}\n" for way, (at, _) in WAYS.items()) + TAIL


def test_used_sectors_follow_from_the_steps_of_addresses(reader: Reader) -> None:
    ways, x = list(WAYS), torch.randn(4, 64)
    readings = reader.read(SECTORS, x, targets=("gfx942",), configurations=[{"way": way} for way in ways])
    found = parts(readings["gfx942.sector_bytes"])
    assert found.pop("sum_kernel") == 32.0  # the pointers are carried by a loop
    names = {"store_kernel": "rows"} | {f"store_kernel@{ways.index(way)}": way for way in ways[1:]}
    assert found == {name: WAYS[way][1] for name, way in names.items() if WAYS[way][1] is not None}
    mutant = SECTORS.replace('way="rows"', 'way="one row down a column"')
    verdict = changed(readings, reader.read(mutant, x, targets=("gfx942",)))["gfx942.sector_bytes"]
    assert (verdict.word, verdict.before) == (Word.CHANGED, readings["gfx942.sector_bytes"].value)


def test_a_comment_costs_and_changes_nothing(reader: Reader) -> None:
    before = reader.read(SCALE, X)
    compiled = reader.compiler.compiled
    commented = SCALE.replace("    x = tl.load", "    # every value\n    x = tl.load")
    values = [{name: each.value for name, each in reader.read(commented, X).items()} for _ in range(2)]
    assert values[0] == values[1] == {name: each.value for name, each in before.items()}
    # Under another name and in another file than before: that is one compilation, and none for the second reading.
    assert reader.compiler.compiled == compiled + 2


def test_overflow_checks_that_nothing_asserts_are_in_no_binary(reader: Reader) -> None:
    """The compiling process leaves them out of options without `debug`."""
    for target in BOTH:
        call = Call(load(reader.folder, PRODUCT), (A, B), lambda *_, **__: None)
        (found,) = Binaries((target,), reader.compiler).of(call, reader.device)
        data = json.loads(found.kernels[0].launch.data)
        assert data["options"]["sanitize_overflow"]
        assert not data["options"].pop("debug")
        checked = target, msgspec.structs.replace(found.kernels[0].launch, data=json.dumps(data))
        facts = reader.compiler.facts([checked])[checked]
        assert msgspec.structs.replace(facts, written=found.kernels[0].facts.written) == found.kernels[0].facts


def test_every_named_configuration_is_compiled_and_the_chosen_one_recognised(reader: Reader) -> None:
    """They may depend on the target."""

    def configurations() -> list[dict[str, int]]:
        hopper = torch.cuda.get_device_capability() == (9, 0)
        return [{"block": block} for block in (2048, 1024, 65536)] if hopper else []

    readings = reader.read(SCALE, X, targets=BOTH, configurations=configurations)
    spills = parts(readings["sm_90.spills"])
    assert list(spills) == ["scale_kernel", "scale_kernel@0", "scale_kernel@2"]
    assert spills["scale_kernel"] == 0 < spills["scale_kernel@2"]
    chosen = parts(readings["sm_90.configuration"])["scale_kernel"]
    assert chosen.startswith("BLOCK=1024 num_warps=4 ")
    assert chosen.endswith("; configuration 1")
    assert list(parts(readings["gfx942.spills"])) == ["scale_kernel"]


def test_a_record_of_constants_is_described_and_compiled_elsewhere(reader: Reader) -> None:
    """As one parameter, whose values get their names back in the kernel: Triton writes down the plain tuple."""
    source = SCALE.replace("factor, BLOCK: tl.constexpr):", "factor, sizes: tl.constexpr):").replace(
        "    at = tl", "    BLOCK: tl.constexpr = named(Sizes, sizes).block\n    at = tl"
    )
    source = source.replace("BLOCK=block, num_warps", "sizes=Sizes(block, 'wide'), num_warps")
    record = (
        "from typing import NamedTuple\n\n\nclass Sizes(NamedTuple):\n    block: int\n    entry: str\n\n\n"
        "@triton.constexpr_function\ndef named(record, values):\n    return record(*values)\n\n\n@triton.jit\n"
    )
    readings = reader.read(source.replace("@triton.jit\n", record), X, targets=BOTH)
    for target in ("sm_90", "gfx942"):
        assert readings[f"{target}.unfit"].value == {}
        assert parts(readings[f"{target}.configuration"])["scale_kernel"].startswith("sizes=1024,wide num_warps=4 ")


def test_an_entry_that_went_is_reported_by_the_one_that_is_taken_instead(reader: Reader) -> None:
    def read(entry: str) -> Any:
        return reader.read(SCALE, X, configurations={entry: {"block": 1024}, "another": {"block": 2048}})

    before, after = read("width <= 512"), read("default")
    assert before["sm_90.entry"].value == {"scale_kernel": "width <= 512"}
    (verdict,) = changed(before, after).values()
    assert (verdict.word, verdict.metric) == (Word.CHANGED, "sm_90.entry")
    assert verdict.reason == "sm_90.entry scale_kernel width <= 512 -> default"
    assert "sm_90.entry" not in reader.read(SCALE, X, configurations=[{"block": 1024}])


def test_tuners_are_counted_over_a_walk_and_all_their_configurations_compiled(reader: Reader) -> None:
    walk = tuple((X[:count],) for count in (1, 2, 7, 8, 16, 33, 48, 63))  # token counts
    before = reader.read(TUNED, X, walk=walk)
    assert list(parts(before["sm_90.spills"])) == ["scale_kernel@0", "scale_kernel@1"]
    assert before["sm_90.configuration"].value == {"scale_kernel": "tuned: one of 2"}
    in_key = changed(before, reader.read(TUNED.replace('key=["width"]', 'key=["n"]'), X, walk=walk))
    assert {name: verdict.reason for name, verdict in in_key.items()} == {
        "sm_90.tunings": "sm_90.tunings scale_kernel 1 -> 9 (+800.0 %)"
    }
    in_constant = TUNED.replace("n, width, factor", "n: tl.constexpr, width, factor")
    reason = changed(before, reader.read(in_constant, X, walk=walk))["sm_90.compilations"].reason
    assert reason == "sm_90.compilations scale_kernel 2 -> 18 (+800.0 %)"


def test_another_choice_fails_nothing(reader: Reader) -> None:
    one = TUNED.replace('triton.Config({"BLOCK": 256}, num_warps=2), ', "")
    after = reader.read(one.replace("1024", "2048"), X)
    assert changed(reader.read(one, X), after) == {}
    assert "BLOCK=2048 num_warps=4" in str(after["sm_90.configuration"].value)


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
    readings = reader.read(SCALE.replace("    out =", probe), X)
    assert readings["sm_90.unfit"].value == {}
    assert readings["sm_90.spills"].value == {"scale_kernel": 0}


def test_kernels_inside_a_compiled_function_are_followed(reader: Reader) -> None:
    function = load(reader.folder, SCALE)
    compiled = torch.compile(lambda x: function(x.sin()) + 1, fullgraph=True, backend="eager")
    readings = reader.read_call(Call(compiled, (X,), lambda *_, **__: None), ("gfx942",))
    assert readings["gfx942.unfit"].value == {}
    assert readings["gfx942.load_bits"].value == {"scale_kernel": 128.0}
    assert torch.equal(compiled(X), X.sin() * 2 + 1)  # and compiled it is again


def test_forward_and_backward_have_their_own_kernels(reader: Reader) -> None:
    source = SCALE.replace("def call(", "def forward(") + (
        "\n\nclass Scale(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return forward(x)\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return forward(grad, 2048)\n\n\n"
        "def call(x):\n    return Scale.apply(x)\n"
    )
    x = X.clone().requires_grad_()
    forward, backward = (
        str(reader.read(source, x, direction=direction)["sm_90.configuration"].value)
        for direction in ("forward", "backward")
    )
    assert "BLOCK=1024" in forward
    assert "BLOCK=2048" in backward


def test_a_call_without_kernels_fails_only_if_some_are_recorded(reader: Reader) -> None:
    """A call that has lost its kernels on a chip that is not here would be as good as before, by all other readings."""
    found = reader.read("def call(x):\n    return x * 2\n", X)
    assert {name: reading.value for name, reading in found.items()} == {"sm_90.asked": {}}
    assert found["sm_90.asked"].tells_of_nothing
    verdict = judge_exact(found["sm_90.asked"], {"double": "none"})
    assert (verdict.word, verdict.reason) == (Word.CHANGED, "sm_90.asked - double")


def test_nothing_of_a_pretended_target_stays_but_the_modules_that_were_read(
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
        assert recording.problem == problem


def test_on_a_gpu_its_own_architecture_is_read_in_place(reader: Reader) -> None:
    """A device that says it is a GPU: nothing is forked, nothing pretended, and nothing launched."""
    source = SCALE.replace('    if x.device.type == "cpu":\n        return x * 2.0\n', "")
    hopper = SimpleNamespace(architecture="sm_90")
    gpu: Any = SimpleNamespace(holds_cpu_tensors=False, asynchronous=True, identity=hopper)
    call = Call(load(reader.folder, source), (X,), lambda *_, **__: None)
    subject: Any = SimpleNamespace(
        test=None, binaries=Binaries(("gfx942",), reader.compiler), call=call, direction="forward", run=lambda: None
    )
    readings = {each.metric: each.value for each in binary.read(subject, gpu)}
    assert readings["sm_90.unfit"] == {}
    assert readings["sm_90.load_bits"] == {"scale_kernel": 128.0}
    # The GPU counts its own, and has run the kernel.
    assert not readings.keys() & {"sm_90.memory_operators", "sm_90.unchecked"}


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
