"""Fingerprints of kernels: what moves them, what does not, and what they cost; and the configuration that explains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from perfguard.judge.exact import describe_difference
from perfguard.measure.binaries.comparison import configuration_reading
from perfguard.measure.binaries.kernel_code import code_of, configuration_of, places_of
from perfguard.model.records.code import same_code
from tests.measure.metrics.binaries import GLUON, PRODUCT, SCALE, TUNED, Reader

BOTH = ("sm_90", "gfx942")
X = torch.randn(64, 128)
A, B = torch.randn(64, 512, dtype=torch.bfloat16), torch.randn(512, 64, dtype=torch.bfloat16)

HELPED = SCALE.replace(
    "@triton.jit\n",
    "@triton.jit\ndef doubled(value):\n    return value + value\n\n\n"
    "@triton.jit\ndef halved(value):\n    half = value * 0.5\n    return half\n\n\n@triton.jit\n",
).replace("x * factor", "doubled(x) * factor + halved(x)")


def replaced(source: str, *pairs: tuple[str, str]) -> str:
    for before, after in pairs:
        assert before in source
        source = source.replace(before, after)
    return source


def halves(reader: Reader, source: str, *args: torch.Tensor) -> tuple[str, str]:
    """The fingerprint of the only kernel of a module that is named alike for all sources."""
    call = reader.call(source, *(args or (X,)), name="kernels_of_code")
    (code,) = code_of(reader.follow(call, BOTH), reader.compiler).values()
    source_half, _, ir = code.partition("-")
    assert len(source_half) == len(ir) == 8
    return source_half, ir


def test_formatting_and_folders_move_no_half(reader: Reader) -> None:
    formatted = replaced(
        SCALE,
        ("    x = tl.load", "    # every value\n\n    x = tl.load"),
        ("x * factor", "(x   *   factor)"),
        ("def call(x, block=1024):\n", 'def call(x, block=1024):\n    """Twice."""\n'),
    )
    assert halves(reader, SCALE) == halves(reader, formatted)


RENAMINGS = {
    "values": (SCALE, (("    at =", "    place ="), ("+ at", "+ place"), ("mask=at <", "mask=place <"))),
    "parameters": (
        SCALE,
        (("n, factor, BLOCK:", "count, factor, TILE:"), ("* BLOCK", "* TILE"), ("0, BLOCK)", "0, TILE)"),
         ("< n", "< count"), ("BLOCK=block", "TILE=block")),
    ),
    "inline helpers": (
        HELPED,
        (("doubled", "twice"), ("halved", "half_of"), ("half =", "part ="), ("return half\n", "return part\n")),
    ),
    "a kernel of a loop and a dot": (PRODUCT, (("total", "sums"), ("start", "first"), ("depth", "inner"))),
    "Gluon": (GLUON, (("    at = gl", "    place = gl"), ("_ptr + at", "_ptr + place"), ("mask=at", "mask=place"))),
}  # fmt: skip


@pytest.mark.parametrize("name", RENAMINGS)
def test_a_renaming_moves_the_source_alone(reader: Reader, name: str) -> None:
    source, pairs = RENAMINGS[name]
    args = (A, B) if source == PRODUCT else (X,)
    before, after = halves(reader, source, *args), halves(reader, replaced(source, *pairs), *args)
    assert before[0] != after[0]
    assert before[1] == after[1]
    assert same_code("-".join(before), "-".join(after))


OTHERS = {
    "the operation": (SCALE, (("x * factor", "x + factor"),)),
    "a number": (SCALE, (("x * factor", "x * factor * 1.5"),)),
    "a constant of the launch": (SCALE, (("block=1024", "block=512"),)),
    "an option of the launch": (SCALE, (("num_warps=4", "num_warps=8"),)),
    "what may be assumed of an argument": (SCALE, (("@triton.jit", '@triton.jit(do_not_specialize=["x_ptr"])'),)),
    "the body of a helper": (HELPED, (("value * 0.5", "value * 0.25"),)),
    "which helper is called": (HELPED, (("doubled(x) * factor", "halved(x) * factor"),)),
    "a configuration of a tuner": (TUNED, (("num_warps=2", "num_warps=1"),)),
    "the key of a tuner": (TUNED, (('key=["width"]', 'key=["n"]'),)),
    "torch's operators beside it": (SCALE, (("empty_like(x)", "zeros_like(x)"),)),
    "Gluon": (GLUON, (("x + 1.0, mask", "x + 2.0, mask"),)),
    "the grid of what nothing interprets": (GLUON, (("+ 511", "+ 1023"),)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_work_moves_both_halves(reader: Reader, name: str) -> None:
    source, pairs = OTHERS[name]
    before, after = halves(reader, source), halves(reader, replaced(source, *pairs))
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert not same_code("-".join(before), "-".join(after))


def test_a_branch_for_one_target_is_seen(reader: Reader) -> None:
    """The first IR is made once for all targets with equal arguments, unless the kernel asks for its target."""
    branch = "    if tl.target_info.is_hip():\n        x = x * {}\n    tl.store("
    source = SCALE.replace("    tl.store(", branch.format("3.0"))
    before, after = halves(reader, source), halves(reader, source.replace("3.0", "5.0"))
    assert before[1] != after[1]


def test_one_half_is_enough_and_an_empty_one_is_none() -> None:
    assert same_code("0123-4567", "0123-89ab")
    assert same_code("0123-4567", "cdef-4567")
    assert not same_code("0123-4567", "89ab-cdef")
    assert not same_code("0123-", "4567-")
    assert same_code("0123-", "0123-4567")


def test_a_kernel_is_found_at_its_definition_below_the_current_folder(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reader.follow(reader.call(SCALE, X))
    file = Path(found[0].recording.launches[0].file)
    assert places_of(found) == {}  # A library elsewhere has no line in this repository.
    monkeypatch.chdir(file.parent)
    ((kernel, place),) = places_of(found).items()
    path, _, rest = place.partition(":")
    number, _, named = rest.partition(" in ")
    assert (path, kernel, named) == (file.name, "scale_kernel", "scale_kernel")
    assert file.read_text(encoding="utf-8").splitlines()[int(number) - 1] == "@triton.jit"


def test_a_known_source_costs_no_front_end_and_keeps_the_records_text(reader: Reader) -> None:
    found = reader.follow(reader.call(SCALE.replace("x * factor", "x * factor - 7.0"), X))
    whole = code_of(found, reader.compiler)
    made = reader.compiler.front_ends
    source = whole["scale_kernel"].partition("-")[0]
    of_another_triton = {"scale_kernel": f"{source}-01234567"}
    assert code_of(found, reader.compiler, of_another_triton) == of_another_triton
    other = reader.follow(reader.call(SCALE.replace("x * factor", "x * factor - 8.0"), X))
    assert code_of(other, reader.compiler, new=False)["scale_kernel"].endswith("-")
    assert reader.compiler.front_ends == made
    # A record of another source needs the first IR, which may be the same.
    assert not code_of(other, reader.compiler, whole, new=False)["scale_kernel"].endswith("-")
    assert reader.compiler.front_ends == made + 1


def test_a_fingerprint_is_that_of_another_process_in_another_folder(reader: Reader, tmp_path: Path) -> None:
    call = reader.call(HELPED, torch.ones(64, 128), name="kernels_elsewhere")
    here = code_of(reader.follow(call, BOTH), reader.compiler)
    code = (
        "import sys, json, torch, fractions, xml.dom\nfrom pathlib import Path\n"
        "from tests.measure.metrics.binaries import Reader\n"
        "from tests.measure.binaries.test_kernel_code import BOTH, HELPED, code_of\n"
        "reader = Reader(Path(sys.argv[1]))\n"
        "call = reader.call(HELPED, torch.ones(64, 128), name='kernels_elsewhere')\n"
        "print(json.dumps(code_of(reader.follow(call, BOTH), reader.compiler)))\nreader.close()\n"
    )
    line = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "deeper" / "checkout")]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PYTHONHASHSEED": "7"},
    )
    assert json.loads(done.stdout) == here


def test_the_configuration_names_what_differs_and_nothing_alike(reader: Reader) -> None:
    source = SCALE.replace("BLOCK: tl.constexpr):", "BLOCK: tl.constexpr, WIDE: tl.constexpr, held: tl.constexpr):")
    source = source.replace("BLOCK=block, num_warps=4", "BLOCK=block, WIDE=True, held=9, num_warps=4")
    before, after = (
        configuration_reading(configuration_of(reader.follow(reader.call(text, X), BOTH)))
        for text in (source, source.replace("held=9, num_warps=4", "held=2, num_warps=8"))
    )
    difference = describe_difference(after, before.value)
    assert difference == "configuration `scale_kernel`: held 9 -> 2, `scale_kernel`: num_warps 4 -> 8"
    assert isinstance(before.value, dict)
    assert before.value["`scale_kernel`: WIDE"] == "True"


def test_a_configuration_of_one_target_names_it(reader: Reader) -> None:
    source = SCALE.replace("num_warps=4", "num_warps=8 if torch.version.hip else 4")
    parts = configuration_of(reader.follow(reader.call(source, X), BOTH))
    assert parts["`scale_kernel`: num_warps"] == "4 on sm_90, 8 on gfx942"


def test_a_field_of_a_named_tuple_is_named_alone(reader: Reader) -> None:
    """A configuration is often one constant; what differs is one number of it."""
    source = SCALE.replace("BLOCK: tl.constexpr):", "BLOCK: tl.constexpr, config: tl.constexpr):")
    source = source.replace("BLOCK=block,", "BLOCK=block, config=Ring(8, 9),")
    source = source.replace(
        "@triton.jit", "Ring = __import__('collections').namedtuple('Ring', 'warps held')\n@triton.jit", 1
    )
    before, after = (
        configuration_of(reader.follow(reader.call(each, X)))
        for each in (source, source.replace("Ring(8, 9)", "Ring(8, 2)"))
    )
    difference = describe_difference(configuration_reading(after), {**before})
    assert difference == "configuration `scale_kernel`: held 9 -> 2"


def test_a_record_of_constants_and_an_entry_of_a_table_are_described(reader: Reader) -> None:
    source = SCALE.replace("BLOCK: tl.constexpr):", "BLOCK: tl.constexpr, sizes: tl.constexpr):")
    source = source.replace("BLOCK=block,", "BLOCK=block, sizes=(block, 'wide', 0.5),")
    table = {"width <= 512": {"block": 1024}, "another": {"block": 2048}}
    parts = configuration_of(reader.follow(reader.call(source, X, configurations=table)))
    assert [parts[f"`scale_kernel`: sizes[{place}]"] for place in range(3)] == ["1024", "wide", "0.5"]
    assert parts["`scale_kernel`: entry"] == "width <= 512"
    numbered = configuration_of(reader.follow(reader.call(SCALE, X, configurations=[{"block": 512}, {"block": 1024}])))
    assert numbered["`scale_kernel`: configuration"] == "1"
    assert configuration_of(reader.follow(reader.call(TUNED, X))) == {"`scale_kernel`: tuned": "one of 2"}
