"""Padded groups: `alignment=16` of the per-group column quantisers, against the reference, bit for bit.

What is not padded is tried in test_quantize_edges.py and test_quantize_behaviour.py; here is what padding moves: where
a group's codes begin, the gap behind them, the rest of the buffer, and the offsets that tell of it.
"""

from __future__ import annotations

import re

import pytest
import torch

from kernels import fp8
from kernels.fp8 import inputs, reference
from kernels.fp8.arguments import padded_ends, padded_rows
from kernels.fp8.formats import FORMATS, Format
from kernels.fp8.inputs import LAYOUTS, SHARING_LAYOUTS, VALUES
from kernels.fp8.shapes import Split, splits
from tests.kernels.guards import guarded_allocations, no_host_reads
from tests.kernels.paths import GPU, KernelPath, every_candidate
from tests.kernels.quantizers import Quantizer, Tensors, assert_bit_equal, without_nan

SINGLE = Quantizer("colwise_per_group", "grouped")
DUAL = Quantizer("colwise_per_group_dual", "dual")
BOTH = Quantizer("rowwise_colwise_per_group", "grouped")
ANY = pytest.mark.parametrize("q", [SINGLE, DUAL, BOTH], ids=["single", "dual", "read-once"])
ODD = Split("odd", (19, 0, 14), unused=4)  # a gap, an empty group, and a tail of the buffer
TALL = Split("tall", (7, 0, 71), unused=2)  # several chunks in one group


def check(q: Quantizer, arguments: Tensors, because: str, **options: object) -> Tensors:
    with guarded_allocations():
        got = q.function(*arguments, alignment=16, **options)
    assert_integers_equal(got[-1], arguments[-1])
    options.pop("candidate", None)
    assert_bit_equal(got[:-1], q.reference(*arguments, alignment=16, **options)[:-1], because)
    return got


def assert_integers_equal(padded_offs: torch.Tensor, offs: torch.Tensor) -> None:
    assert padded_offs.dtype == torch.int32
    end, expected = 0, []
    for length in torch.diff(offs.cpu(), prepend=torch.zeros(1, dtype=torch.int32)).tolist():
        end += -(-length // 16) * 16
        expected.append(end)
    assert padded_offs.tolist() == expected


def test_the_reference_moves_groups_and_nothing_else() -> None:
    """Group by group the unpadded codes at the padded place; zero everywhere else; the same scales."""
    x, offs = SINGLE.arguments(ODD, 5, "cpu")
    codes, scales = reference.quantize_colwise_per_group(x, offs)
    padded, padded_scales, padded_offs = reference.quantize_colwise_per_group(x, offs, alignment=16)
    assert padded.shape == (padded_rows(37, 3), 5)
    assert padded.shape[0] == 96
    assert padded.stride() == (1, 96)
    assert padded_offs.tolist() == [32, 32, 48]
    assert padded_scales.equal(scales)
    expected = torch.zeros(96, 5, dtype=torch.uint8)
    expected[:19], expected[32:46] = codes.view(torch.uint8)[:19], codes.view(torch.uint8)[19:33]
    assert padded.view(torch.uint8).equal(expected)


@pytest.mark.parametrize("split", splits(hot_rows=1024 if GPU else 256), ids=str)
def test_splits(split: Split, triton_path: KernelPath) -> None:
    """Empty, skewed and odd groups, and rows past the last one, which hold NaN; width 6 comes as words."""
    check(SINGLE, SINGLE.arguments(split, 6, triton_path.device), str(split))


@ANY
@pytest.mark.parametrize("width", [1, 0, 16, 31, 34])
def test_widths(q: Quantizer, width: int, triton_path: KernelPath) -> None:
    """Without columns there are no programs, and the offsets are due all the same."""
    check(q, q.arguments(ODD, width, triton_path.device), f"width {width}")


@pytest.mark.parametrize("layout", [*LAYOUTS, *SHARING_LAYOUTS])
def test_layouts(layout: str, triton_path: KernelPath) -> None:
    """A group starts anywhere in x, and on a vector of codes; contiguous rows are where the two differ most."""
    change = {**LAYOUTS, **SHARING_LAYOUTS}[layout]
    for split in (ODD, Split("even", (3, 0, 13))):
        check(SINGLE, SINGLE.arguments(split, 6, triton_path.device, layout=change), f"{layout}, {split}")


@pytest.mark.parametrize("values", ["nan-payloads", "zeros"])
@pytest.mark.parametrize("format_", FORMATS.values(), ids=str)
def test_values(format_: Format, values: str, triton_path: KernelPath) -> None:
    """A slice that is NaN has the NaN code in its rows and zero in its gap."""
    fill = VALUES[values]
    arguments = SINGLE.arguments(ODD, 6, triton_path.device, fill=fill, format_=format_)
    codes, _, _ = check(SINGLE, arguments, values, dtype=format_.dtype, power_of_two=True)
    assert not codes.view(torch.uint8)[19:32].any()
    assert not codes.view(torch.uint8)[46:].any()


@ANY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_inputs(q: Quantizer, dtype: torch.dtype, triton_path: KernelPath) -> None:
    check(q, q.arguments(TALL, 6, triton_path.device, dtype=dtype), str(dtype))


@ANY
def test_every_candidate_gives_the_same_bits(q: Quantizer, triton_path: KernelPath) -> None:
    arguments = q.arguments(TALL, 12, triton_path.device)
    assert list(every_candidate(lambda number: check(q, arguments, f"candidate {number}", candidate=number)))


def test_no_groups_and_no_rows(triton_path: KernelPath) -> None:
    """No group: the whole buffer is rest. No rows: scales and offsets alone, and rows that the bound counts."""
    for split in (Split("", (), unused=5), Split("", (0, 0)), Split("", ())):
        check(SINGLE, SINGLE.arguments(split, 4, triton_path.device), str(split.sizes))


def test_the_host_reads_no_data(triton_path: KernelPath) -> None:
    arguments = DUAL.arguments(ODD, 6, triton_path.device)
    DUAL.function(*arguments, alignment=16)  # compilation may read what it likes
    with no_host_reads():
        DUAL.function(*arguments, alignment=16)
        padded_ends(arguments[-1])


@ANY
def test_opcheck(q: Quantizer, compiled_path: KernelPath) -> None:
    operator = getattr(torch.ops.perfguard_kernels, f"fp8_quantize_{q.name}_padded").default
    arguments = tuple(without_nan(tensor) for tensor in q.arguments(ODD, 6, compiled_path.device))
    torch.library.opcheck(operator, (*arguments, torch.float8_e4m3fn, True, None))


def test_wrong_alignment_is_named() -> None:
    x, offs = torch.zeros(8, 8), torch.tensor([3, 8], dtype=torch.int32)
    for module in (fp8, reference):
        with pytest.raises(ValueError, match=f"^{re.escape('alignment: is 8; may be None or 16')}"):
            module.quantize_colwise_per_group(x, offs, alignment=8)
        with pytest.raises(ValueError, match=f"^{re.escape('alignment: is 32; may be None or 16')}"):
            module.quantize_colwise_per_group_dual(x, x, offs, alignment=32)
        with pytest.raises(ValueError, match=f"^{re.escape('alignment: is 8; may be None or 16')}"):
            module.quantize_rowwise_colwise_per_group(x, offs, alignment=8)


def test_more_than_two_to_the_31_padded_codes(gpu: torch.device) -> None:
    """Codes past 2^31, where the place of a group is far from its rows."""
    if gpu.type != "cuda" or torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free device memory")
    rows, width = 262_400, 8_192
    x = torch.randn(rows, width, dtype=torch.bfloat16, device=gpu)
    offs = Split("", (1, rows - 2001, 1999)).offs(gpu)
    codes, scales, padded_offs = fp8.quantize_colwise_per_group(x, offs, alignment=16)
    narrow = reference.quantize_colwise_per_group(x[:, -64:], offs, alignment=16)
    assert codes[:, -64:].view(torch.uint8).equal(narrow[0].view(torch.uint8))
    assert scales.view(3, -1)[:, -64:].flatten().equal(narrow[1])
    assert padded_offs.equal(narrow[2])


@pytest.mark.parametrize("rows", [512, 2000])
def test_compiled_kernels_at_moderate_sizes(rows: int, gpu: torch.device) -> None:
    """Panels of several chunks, programs that wait for each other, and both of the table's layouts."""
    for layout in (inputs.row_major, inputs.column_major):
        split = Split("", (rows // 3, 0, 17, rows), unused=100)
        check(SINGLE, SINGLE.arguments(split, 384, gpu, layout=layout), f"{rows} rows")
