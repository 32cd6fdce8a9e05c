"""Base and working tree beside each other: the harm that each metric shows, and what is not accused."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfguard.judge.exact import describe_difference
from perfguard.measure.binaries import compiler
from perfguard.measure.binaries.call_binaries import Binaries, OnTarget
from perfguard.measure.binaries.comparison import Compared, Sides, compare_cases
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.binaries.launch_recorder import Recording
from perfguard.model.call import Call
from perfguard.model.records import Word
from tests.measure.binaries.test_kernel_code import A, B, X, replaced
from tests.measure.metrics.binaries import PRODUCT, SCALE, TUNED, Reader, verdicts

BOTH = ("sm_90", "gfx942")
BIG = SCALE.replace("block=1024", "block=16384").replace("num_warps=4", "num_warps=8")  # a tile of 64 values a thread
WIDE = SCALE.replace("program_id(0) * BLOCK", "program_id(0).to(tl.int64) * BLOCK")
ORDERED = SCALE.replace("    tl.store(out_ptr + at,", "    tl.debug_barrier()\n    tl.store(out_ptr + at,").replace(
    "mask=at < n)\n\n", 'mask=at < n, cache_modifier=".cs")\n\n'
)
GENERAL = SCALE.replace("@triton.jit", '@triton.jit(do_not_specialize=["n"])')
SPILLING = ("num_warps=8", "num_warps=1")

UNALIGNED = '@triton.jit(do_not_specialize_on_alignment=["{}"])'
SUMMED = "total + tl.sum(a[:, :, None].to(tl.float32) * b[None, :, :].to(tl.float32), 1)"
UNKNOWN_CHIP = "    raise ValueError('no kernel for ' + torch.cuda.get_device_name())\n    out ="


def compared(
    reader: Reader, source: str, mutant: str, targets: tuple[str, ...] = ("sm_90",), **options: Any
) -> Compared:
    """Of two modules with one name, each followed before the other is loaded."""
    args = (A, B) if "product_kernel" in source else (X,)
    base, work = (
        reader.follow(reader.call(text, *args, name="kernels_of_sides", **options), targets)
        for text in (source, mutant)
    )
    return compare_cases([Sides(base, work)], reader.compilers)[0]


def reasons(found: Compared) -> dict[str, str]:
    """Metric -> the reason of a verdict that convicts."""
    return {name: each.reason for name, each in verdicts(found).items() if each.word is Word.CHANGED}


@dataclass(frozen=True)
class Mutant:
    """Changes of a source, and the reasons of the verdicts on it by metric, as patterns."""

    pairs: tuple[tuple[str, str], ...]
    reasons: dict[str, str]
    alone: bool = True  # no other metric reports it
    source: str = SCALE


MUTANTS = {
    "spills": Mutant(  # K06
        (SPILLING,),
        {"sm_90.spills": "0 -> *"},
        source=BIG,
    ),
    "divisibility of loads": Mutant(  # K13
        (("@triton.jit", UNALIGNED.format("x_ptr")),),
        {f"{target}.load_bits": "128 -> 32 (-75.0 %)" for target in BOTH},
    ),
    "divisibility of stores": Mutant(
        (("@triton.jit", UNALIGNED.format("out_ptr")),),
        {f"{target}.store_bits": "128 -> 32 (-75.0 %)" for target in BOTH},
    ),
    "32-bit addresses": Mutant(
        (("program_id(0).to(tl.int64) * BLOCK", "program_id(0) * BLOCK"),),
        {f"{target}.address_bits": "64 -> 32 (-50.0 %)" for target in BOTH},
        source=WIDE,
    ),
    "a product in 32 bits, widened too late": Mutant(
        (("tl.program_id(0).to(tl.int64) * BLOCK", "(tl.program_id(0) * BLOCK).to(tl.int64)"),),
        {f"{target}.address_bits": "64 -> 32 (-50.0 %)" for target in BOTH},
        source=WIDE,
    ),
    "a barrier": Mutant(
        (("    tl.debug_barrier()\n", ""),),
        {f"{target}.ordering": "1 -> 0" for target in BOTH},
        source=ORDERED,
    ),
    "a hint": Mutant(
        ((', cache_modifier=".cs"', ""),),
        {"sm_90.hints": "1 -> 0"},
        source=ORDERED,
    ),
    "an argument that is specialised": Mutant(
        (('(do_not_specialize=["n"])', ""),),
        {f"{target}.unspecialised": "1 -> 0" for target in BOTH},
        alone=False,
        source=GENERAL,
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
    "columns": Mutant(  # K47
        (("program_id(0) * BLOCK + tl.arange(0, BLOCK)", "program_id(0) + tl.arange(0, BLOCK) * 8"),),
        {"sm_90.sector_bytes": "32 B -> 4 B (-87.5 %)"},
        alone=False,
    ),
    "no compilation": Mutant((("x * factor", "x @ factor"),), {"gfx942.unfit": "does not compile: *"}),
    "an error": Mutant((("    out =", UNKNOWN_CHIP),), {"gfx942.unfit": "ValueError: no kernel for MI300X"}),
    "no kernel any more": Mutant(
        (('x.device.type == "cpu"', "x.dim() == 2"),), {"sm_90.unfit": "launches no Triton kernel any more"}
    ),
    "torch's operators": Mutant(
        (("empty_like(x)", "zeros_like(x.float().bfloat16().float())"), ("(x, out,", "(x.t().contiguous(), out,")),
        {"sm_90.memory_operators": "none -> 2 _to_copy, 1 clone, 1 zeros_like"},
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_reported_with_its_figures(reader: Reader, mutant: Mutant) -> None:
    targets = tuple(sorted({metric.partition(".")[0] for metric in mutant.reasons}))
    result = compared(reader, mutant.source, replaced(mutant.source, *mutant.pairs), targets)
    assert result.problems == []
    found = reasons(result)
    assert not mutant.alone or set(found) == set(mutant.reasons)
    for metric, pattern in mutant.reasons.items():
        kernel = "product_kernel" if mutant.source == PRODUCT else "scale_kernel"
        of_call = metric.endswith("unfit") and not pattern.startswith(("does not", "needs", "2,048"))
        subject = "" if metric.endswith("memory_operators") else "call " if of_call else f"{kernel} "
        assert fnmatchcase(found[metric], f"{metric} {subject}{pattern}"), found[metric]
        assert "/" not in found[metric].replace("and/or", "")  # folders differ between machines


def test_the_configuration_is_a_cause_beside_the_facts(reader: Reader) -> None:
    found = compared(reader, BIG, replaced(BIG, SPILLING))
    first = found.work[0]
    assert describe_difference(first, found.base[0].value) == "configuration `scale_kernel`: num_warps 8 -> 1"
    assert found.other_code == {"sm_90": ["scale_kernel"]}


SAME = {
    "nothing": (),
    "formatting": (("x * factor", "(x  *  factor)"),),
    "names": (
        ("    at =", "    place ="),
        ("+ at", "+ place"),
        ("mask=at <", "mask=place <"),
        ("scale_kernel", "rows_kernel"),
    ),
    "another function of the module": (("def call(", "def unused():\n    return 3\n\n\ndef call("),),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_work_is_neither_compiled_nor_reported(reader: Reader, name: str) -> None:
    compiled = [each.compiled for each in reader.compilers]
    assert compared(reader, SCALE, replaced(SCALE, *SAME[name]), BOTH) == Compared()
    assert [each.compiled for each in reader.compilers] == compiled


def test_an_equal_source_needs_no_first_ir(reader: Reader) -> None:
    made = [each.front_ends for each in reader.compilers]
    assert compared(reader, TUNED, replaced(TUNED, ("    x = tl", "    # here\n    x = tl")), BOTH) == Compared()
    assert [each.front_ends for each in reader.compilers] == made


def test_other_code_of_one_binary_is_not_disassembled(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "disassembled", None)  # a call would raise
    assert compared(reader, SCALE, replaced(SCALE, ("x * factor", "x * 1.0 * factor"))) == Compared()


def test_a_pointer_moved_in_64_bits_may_have_offsets_of_32(reader: Reader) -> None:
    moved = replaced(
        WIDE,
        ("    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)", "    at = tl.arange(0, BLOCK)"),
        ("    x = tl.load(", "    first = tl.program_id(0).to(tl.int64) * BLOCK\n    x = tl.load("),
        ("x_ptr + at, mask=at <", "x_ptr + first + at, mask=first + at <"),
        ("out_ptr + at, x * factor, mask=at <", "out_ptr + first + at, x * factor, mask=first + at <"),
    )
    result = compared(reader, WIDE, moved)
    assert result.other_code == {"sm_90": ["scale_kernel"]}
    assert "sm_90.address_bits" not in reasons(result)


def test_a_renamed_kernel_is_found_by_its_place(reader: Reader) -> None:
    second = "    other_kernel[(1,)](out, out, x.numel(), 3.0, BLOCK=64, num_warps=1)\n    return out\n"
    base = BIG.replace("    return out\n", second).replace(
        "\n\ndef call(", "\n\n" + KERNEL.replace("scale_kernel", "other_kernel") + "\n\ndef call("
    )
    work = replaced(base, ("scale_kernel", "rows_kernel"), SPILLING)
    found = reasons(compared(reader, base, work))
    assert set(found) == {"sm_90.spills"}
    assert found["sm_90.spills"].startswith("sm_90.spills rows_kernel 0 -> ")
    assert "other_kernel" not in found["sm_90.spills"]


KERNEL = SCALE[SCALE.index("@triton.jit") : SCALE.index("\n\ndef call")]


def test_kernels_that_nothing_matches_are_compared_by_the_sums_of_their_case(reader: Reader) -> None:
    """Another kernel, with another signature, in place of one."""
    other = replaced(
        BIG,
        ("scale_kernel", "rows_kernel"),
        ("n, factor, BLOCK:", "n, factor, more, BLOCK:"),
        ("2.0, BLOCK", "2.0, 1.5, BLOCK"),
        ("x * factor", "x * factor * more"),
    )
    harmless = compared(reader, BIG, other)
    assert reasons(harmless) == {}
    found = reasons(compared(reader, BIG, replaced(other, SPILLING)))
    assert set(found) == {"sm_90.spills"}
    assert found["sm_90.spills"].startswith("sm_90.spills all kernels 0 -> ")


def test_a_configuration_that_is_inserted_accuses_no_other_one(reader: Reader) -> None:
    inserted = replaced(TUNED, ("configs=[", 'configs=[triton.Config({"BLOCK": 16384}, num_warps=1), '))
    assert reasons(compared(reader, TUNED, inserted)) == {}
    table = replaced(TUNED, ("num_warps=2", "num_warps=1"), ('"BLOCK": 256', '"BLOCK": 16384'))
    assert "sm_90.spills" in reasons(compared(reader, TUNED, table))


def test_a_choice_that_moved_is_compared_by_what_the_call_launches(reader: Reader) -> None:
    table = [{"block": 32768}, {"block": 1024}]
    found = compared(reader, SCALE, SCALE.replace("block=1024", "block=32768"), configurations=table)
    assert reasons(found)["sm_90.spills"].startswith("sm_90.spills scale_kernel 0 -> ")
    assert found.other_code == {"sm_90": ["scale_kernel"]}


def test_tunings_and_compilations_of_a_walk_are_counted(reader: Reader) -> None:
    walk = tuple((X[:count],) for count in (1, 2, 7, 8, 16, 33, 48, 63))  # token counts
    in_key = compared(reader, TUNED, TUNED.replace('key=["width"]', 'key=["n"]'), walk=walk)
    assert reasons(in_key) == {"sm_90.tunings": "sm_90.tunings scale_kernel 1 -> 9 (+800.0 %)"}
    in_constant = TUNED.replace("n, width, factor", "n: tl.constexpr, width, factor")
    reason = reasons(compared(reader, TUNED, in_constant, walk=walk))["sm_90.compilations"]
    assert reason == "sm_90.compilations scale_kernel 2 -> 18 (+800.0 %)"


def test_cases_are_compared_together_and_answered_in_order(reader: Reader) -> None:
    def sides(mutant: str) -> Sides:
        base, work = (reader.follow(reader.call(text, X)) for text in (SCALE, mutant))
        return Sides(base, work)

    cases = [sides(SCALE.replace("@triton.jit", UNALIGNED.format(name))) for name in ("x_ptr", "out_ptr")]
    first, second = map(reasons, compare_cases(cases, reader.compilers))
    assert (set(first), set(second)) == ({"sm_90.load_bits"}, {"sm_90.store_bits"})


def test_calls_without_kernels_start_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start takes seconds, as it imports Triton."""
    monkeypatch.setattr(compiler, "_Worker", lambda *_: pytest.fail("a compiler was started"))
    nothing = [OnTarget("sm_90", Recording())]
    base, work = (Compiler(tmp_path, path=[side]) for side in ("base", "work"))
    assert compare_cases([Sides(nothing, nothing)], (base, work)) == [Compared()]


def test_what_could_not_be_followed_or_compiled_here_is_a_problem_and_convicts_nobody(reader: Reader) -> None:
    base = reader.follow(reader.call(SCALE, X))
    cut_short = [OnTarget("sm_90", Recording(problem="took longer than 120 s", passing=True))]
    (found,) = compare_cases([Sides(base, cut_short)], reader.compilers)
    assert found == Compared(problems=["sm_90: could not be followed here: took longer than 120 s"])

    (launch,) = base[0].recording.launches
    lost = msgspec.structs.replace(launch, source="another", module="nowhere", file="/nowhere/at_all.py")
    (found,) = compare_cases([Sides(base, [OnTarget("sm_90", Recording([lost]))])], reader.compilers)
    (problem,) = found.problems
    assert problem.startswith("sm_90: scale_kernel: could not be compiled here: FileNotFoundError: ")
    assert (found.work, found.other_code) == ([], {})


def test_modules_of_one_name_are_compiled_each_from_its_side(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper is imported by name: each side's must be its own."""
    helper = "import triton\n\n\n@triton.jit\ndef widened(x):\n    return {}\n"
    kernel = SCALE.replace("import torch\n", "import torch\nfrom of_both_sides import widened\n").replace(
        "x * factor", "widened(x) * factor"
    )
    followed: list[list[OnTarget]] = []
    compilers = []
    for side, body in (("base", "x"), ("work", "x.to(triton.language.float64) + 0.1")):
        folder = tmp_path / side
        folder.mkdir()
        (folder / "of_both_sides.py").write_text(helper.format(body))
        (folder / "kernel_of_both_sides.py").write_text(kernel)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            for name in ("of_both_sides", "kernel_of_both_sides"):
                patch.delitem(sys.modules, name, raising=False)
            module = importlib.import_module("kernel_of_both_sides")
            call = Call(module.call, (X,), lambda *_, **__: None)
            followed.append(Binaries(("sm_90",), reader.compiler).of(call, reader.device))
            compilers.append(Compiler(tmp_path / "cache", path=[str(folder), *filter(None, sys.path)]))
            for name in ("of_both_sides", "kernel_of_both_sides"):
                sys.modules.pop(name)
    found = compare_cases([Sides(*followed)], (compilers[0], compilers[1]))[0]
    for each in compilers:
        each.close()
    assert found.problems == []
    assert set(reasons(found)) == {"sm_90.fp64"}
