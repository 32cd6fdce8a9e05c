"""Every quantiser against its reference, bit for bit, where quantisers go wrong.

Only kernels are tried here, compiled or interpreted: the eager path is the reference itself, and what could
go wrong around it is in test_quantize_behaviour.py. What reads once launches the kernels of two others, and is compared
with them. The default is a small input of N(0, 1) in bf16; each
test moves one thing away from it: how the rows fall into groups, how wide they are, how they lie in memory,
what they hold. All bytes must agree, on every path: the arithmetic is exact, so there is no tolerance.
"""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from kernels import fp8
from kernels.arguments import DTYPES
from kernels.fp8 import shapes
from kernels.fp8.formats import FORMATS, Format
from kernels.fp8.inputs import LAYOUTS, SHARING_LAYOUTS, VALUES, far_apart
from kernels.fp8.shapes import Split, splits
from tests.kernels.guards import guarded_allocations
from tests.kernels.paths import GPU, KernelPath
from tests.kernels.quantizers import (
    BLOCKS,
    KERNELS,
    SEVEN,
    Quantizer,
    Tensors,
    assert_bit_equal,
    by_kernel,
    name,
    param,
)

EVERY = by_kernel(SEVEN + BLOCKS)
EVERY_SLICE = by_kernel(SEVEN)
EVERY_GROUPED = by_kernel([q for q in SEVEN if q.is_grouped])

# Two groups with an empty one between them, and a tail against every block size. Whether the buffer has a
# multiple of 16 rows decides what a kernel may load at once, so most inputs come both ways.
ODD = Split("odd", (19, 0, 14))
EVEN = Split("even", (19, 0, 13))
WIDTH = 24


def check(q: Quantizer, arguments: Tensors, because: str, **options: object) -> Tensors:
    """Compare the candidate with the reference; the candidate's results.

    Results come to lie in poisoned memory between guard bytes: what is not written shows as a wrong code,
    what is written beside them as such, where it would else crash the process somewhere later.
    """
    with guarded_allocations():
        got = q.function(*arguments, **options)
    assert_bit_equal(got, q.reference(*arguments, **options), because)
    return got


# ---------------------------------------------------------------------------------------------------
# Splits


# The contract names 4096 rows for the hot expert, at a minute each in the interpreter; there tiles have 32 rows.
@pytest.mark.parametrize("split", splits(hot_rows=4096 if GPU else 160), ids=str)
@EVERY_GROUPED
def test_splits(q: Quantizer, split: Split, triton_path: KernelPath) -> None:
    """Empty, skewed and odd groups, and rows past the last one, which hold NaN."""
    check(q, q.arguments(split, WIDTH, triton_path.device), str(split))


@pytest.mark.parametrize("block", [16, 64, 128, 256])  # the heights that tiles may have, 32 is among `splits`
@EVERY_GROUPED
def test_groups_around_a_block(q: Quantizer, block: int, triton_path: KernelPath) -> None:
    check(q, q.arguments(shapes.around_block(block), 5, triton_path.device), f"block {block}")


# ---------------------------------------------------------------------------------------------------
# Sizes

SIZES = [
    1,  # narrower than anything
    7,  # below one vector access
    16,  # exactly one
    47,  # odd: only the first row is aligned
    48,  # one and a half powers of two
    127,  # block - 1
    128,  # block
    129,  # block + 1
    1000,  # where torchao's scale store went into the next group (K46)
    1408,  # DeepSeek's expert width
    4097,  # more than a tile may hold, and one over
]
DEAR = (16, 48, 128, 1408, 4097)  # the interpreter takes 10 ms a tile of 32 x 32; these add least


def _sizes(along_slices: bool) -> list[object]:
    """Quantisers with the sizes to try; a row in one piece is cheap, tiles are dear."""
    return [
        param(q, size, id=f"{q.name}-{size}")
        for q in SEVEN + BLOCKS
        for size in SIZES
        if GPU
        or ((q.keeps_layout or q in BLOCKS) and (along_slices or size < 4097))
        # Scales lie beside each other across the slices; and two groups' columns are the kernel of one, twice.
        or (size not in DEAR and (size < 1000 or not (along_slices or q.kind == "dual")))
    ]


@pytest.mark.parametrize(("q", "width"), _sizes(along_slices=False))
def test_widths(q: Quantizer, width: int, triton_path: KernelPath) -> None:
    """Elements beside the slices: a mask by lane or by block writes other slices' scales."""
    check(q, q.arguments(Split("", (9, 7)), width, triton_path.device), f"width {width}")


@pytest.mark.parametrize(("q", "length"), _sizes(along_slices=True))
def test_lengths(q: Quantizer, length: int, triton_path: KernelPath) -> None:
    """Elements along the slices: a tail that is left out, or taken from the neighbour."""
    if q.is_grouped:
        odd, even = Split("", (length, 0, 2)), Split("", (length, 0, -length % 16))
        check(q, q.arguments(odd, 3, triton_path.device), f"length {length} and 2")
        check(q, q.arguments(even, 4, triton_path.device), f"length {length} and what makes 16")
    else:
        check(q, q.arguments(Split("", (length,)), 4, triton_path.device), f"length {length}")


@pytest.mark.parametrize(("rows", "width"), [(64, 48), (33, 40), (1, 16), (0, 32), (128, 47), (7, 0), (0, 0)])
@by_kernel([q for q in SEVEN + BLOCKS if q.kind != "weight"])
def test_matrix_shapes(q: Quantizer, rows: int, width: int, triton_path: KernelPath) -> None:
    """The small shapes of the contract; without rows or columns there may still be scales."""
    x = torch.randn(rows, width, dtype=torch.bfloat16, device=triton_path.device)
    operands = (x, x.clone()) if q.kind == "dual" else (x.t(),) if q.kind == "grouped-transposed" else (x,)
    offs = shapes.equal(rows, 3).offs(triton_path.device)
    check(q, (*operands, offs) if q.is_grouped else operands, f"{rows} x {width}")


@pytest.mark.parametrize(
    "shape",
    [
        (3, 32, 48),
        (2, 17, 40),  # an odd inner width
        (1, 64, 16),  # one expert, wide inside
        (1, 1, 1),  # one element
        (2, 0, 5),  # nothing to reduce over K
        (2, 5, 0),  # nothing to reduce over N
        (0, 5, 3),  # no expert
    ],
    ids=str,
)
@pytest.mark.parametrize("q", [q for q in SEVEN + BLOCKS if q.kind == "weight"], ids=name)
def test_weight_shapes(q: Quantizer, shape: tuple[int, int, int], triton_path: KernelPath) -> None:
    experts, inner, outer = shape
    w = torch.randn(experts, outer, inner, dtype=torch.bfloat16, device=triton_path.device).mT
    check(q, (w,), str(shape))


@EVERY_GROUPED
def test_no_groups(q: Quantizer, triton_path: KernelPath) -> None:
    """No group at all: no per-group scales, and every row is past the last one."""
    check(q, q.arguments(Split("", (), unused=5), 6, triton_path.device), "no groups")


# ---------------------------------------------------------------------------------------------------
# Layouts


@pytest.mark.parametrize("layout", LAYOUTS)
@EVERY
def test_layouts(q: Quantizer, layout: str, triton_path: KernelPath) -> None:
    """The same values elsewhere in memory, surrounded by NaN."""
    for split in (ODD, EVEN):
        arguments = q.arguments(split, WIDTH, triton_path.device, layout=LAYOUTS[layout])
        check(q, arguments, f"{layout}, {split}")


@pytest.mark.parametrize("layout", LAYOUTS)
@EVERY
def test_layouts_of_one_row_or_column(q: Quantizer, layout: str, triton_path: KernelPath) -> None:
    """A dimension of size 1 has any stride: a launcher that reads the layout from strides may be misled."""
    for rows, width in ((1, 9), (9, 1)):
        arguments = q.arguments(Split("", (rows,)), width, triton_path.device, layout=LAYOUTS[layout])
        check(q, arguments, f"{layout}, {rows} x {width}")


@pytest.mark.parametrize("layout", SHARING_LAYOUTS)
@EVERY
def test_layouts_that_share_memory(q: Quantizer, layout: str, triton_path: KernelPath) -> None:
    """Stride 0, as in the gradient of a sum, and windows that overlap."""
    for split in (ODD, EVEN):
        arguments = q.arguments(split, WIDTH, triton_path.device, layout=SHARING_LAYOUTS[layout])
        check(q, arguments, f"{layout}, {split}")


# Indices along the dimension, and how far apart. Sixteen rows and more may be read as 32-bit words, of which
# there are half as many. Where a tile has its own base, the base must lie past 2^31 too: that of the
# second tile of 32 rows in the interpreter, of a tile of any height on a GPU.
FAR = [
    (3, 2**30),  # the third offset does not fit, though the stride does
    (16, 2**29),
    (48, 2**27),
    (16, 2**31),  # nor does the stride, or twice the stride in words
    *([(1040, 2**22)] if GPU else []),
]
FAR_CASES = [
    param(q, dim, length, stride, id=f"{q.name}-dim{dim}-{length}x{stride}")
    for q in SEVEN + BLOCKS
    for length, stride in FAR
    for dim in range(3 if q.kind == "weight" else 2)
]


@pytest.mark.parametrize(("q", "dim", "length", "stride"), FAR_CASES)
def test_offsets_past_two_to_the_31(q: Quantizer, dim: int, length: int, stride: int, triton_path: KernelPath) -> None:
    """Indices far apart in memory: no product of index and stride may be taken in 32 bits."""
    needed_gib = 4 * max(2**32, length * stride) * (2 if q.kind == "dual" else 1) >> 30
    if GPU == "cuda" and torch.cuda.mem_get_info()[0] >> 30 < needed_gib + 2:
        pytest.skip(f"needs {needed_gib} GiB of free device memory: a GPU backs every page of the buffer")
    split = Split("", (2, 0, length - 2))
    layout = partial(far_apart, dim=dim, stride=stride)
    arguments = q.arguments(split, length, triton_path.device, layout=layout)
    check(q, arguments, f"{length} indices, {stride} apart")


# ---------------------------------------------------------------------------------------------------
# Values


COMBINATIONS = list(itertools.product(DTYPES, FORMATS.values(), (False, True)))


# Values are read and encoded alike in all that run the same kernel.
ENCODING = [q for q in SEVEN + BLOCKS if GPU or q.name in KERNELS]


def _share(q: Quantizer, turn: int) -> list[tuple[torch.dtype, Format, bool]]:
    """Dtypes, formats and scales to try: all 24 where that is cheap, else a few.

    Quantisers take turns, so that between them many are tried. In the interpreter each value takes another turn; on a
    GPU, where each combination is compiled, none does.
    """
    if q.keeps_layout:
        return COMBINATIONS
    count = 8 if GPU else 4
    first = count * ENCODING.index(q) + (0 if GPU else turn)
    # 7 has no factor in common with 24, and changes dtype, format and scale at each step.
    return [COMBINATIONS[7 * (first + step) % len(COMBINATIONS)] for step in range(count)]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("q", ENCODING, ids=name)
def test_values(q: Quantizer, values: str, triton_path: KernelPath) -> None:
    """Zeros, limits, ties, subnormals and what is not finite, for input dtypes, formats and kinds of scale."""
    # 6 slices beside each other; the second group shows whether a slice leaks into the next.
    splits_in_turn = itertools.cycle((Split("", (23, 9)), Split("", (23, 8))))
    for dtype, format_, rounds in _share(q, turn=list(VALUES).index(values)):
        split, fill = next(splits_in_turn), VALUES[values]
        arguments = q.arguments(split, 6, triton_path.device, fill=fill, dtype=dtype, format_=format_)
        because = f"{values}, {dtype} to {format_}, {q.flag} {rounds}"
        check(q, arguments, because, dtype=format_.dtype, **{q.flag: rounds})


@pytest.mark.parametrize("format_", FORMATS.values(), ids=str)
@EVERY_SLICE
def test_every_code_and_every_tie(q: Quantizer, format_: Format, triton_path: KernelPath) -> None:
    """All values that a code has, all middles between two, and the inputs next to those, at scale 1."""
    dtypes = DTYPES if q.keeps_layout else DTYPES[SEVEN.index(q) % 3 :][:1]
    for dtype in dtypes:
        split, fill = Split("", (144,)), VALUES["ties"]
        arguments = q.arguments(split, 8, triton_path.device, fill=fill, dtype=dtype, format_=format_)
        got = check(q, arguments, f"ties, {dtype} to {format_}", dtype=format_.dtype)
        codes = got[0].view(torch.uint8).unique().numel()
        finite = 2 * format_.max_code + 1 + format_.has_negative_zero
        assert codes == finite, f"{codes} codes appeared, {format_} has {finite} finite ones"


@pytest.mark.parametrize("values", ["one-nan", "one-inf", "one-minus-inf"])
@EVERY_SLICE
def test_one_bad_element_spoils_its_slice_alone(q: Quantizer, values: str, triton_path: KernelPath) -> None:
    """NaN or Inf anywhere: the scale and all codes of that slice are NaN, and nothing else is."""
    arguments = q.arguments(Split("", (16, 17)), 9, triton_path.device, fill=VALUES[values])
    results = q.function(*arguments)
    for codes, scales in zip(results[::2], results[1::2], strict=True):
        bad_codes, bad_scales = codes.float().isnan().sum().item(), scales.isnan().sum().item()
        assert bad_scales == 1, f"{bad_scales} scales are NaN, one slice holds {values}"
        assert 0 < bad_codes < codes.numel() / 2, f"{bad_codes} codes are NaN"
        assert scales.isfinite().sum() == scales.numel() - 1


# ---------------------------------------------------------------------------------------------------
# What reads once has the results of two others


def _columns(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(ODD.rows, WIDTH, dtype=torch.bfloat16, device=device), ODD.offs(device)


OPTIONS = pytest.mark.parametrize("power_of_two", [False, True], ids=["exact", "power-of-two"])


@pytest.mark.parametrize("layout", ["row-major", "column-major", "every-second-column"])
@OPTIONS
def test_read_once_is_both(power_of_two: bool, layout: str, triton_path: KernelPath) -> None:
    x, offs = _columns(triton_path.device)
    x, options = LAYOUTS[layout](x), {"power_of_two": power_of_two}
    rows = fp8.quantize_rowwise(x, **options)
    both = fp8.quantize_rowwise_colwise_per_group(x, offs, **options)
    assert_bit_equal(both, (*rows, *fp8.quantize_colwise_per_group(x, offs, **options)))
    padded = fp8.quantize_rowwise_colwise_per_group(x, offs, alignment=16, **options)
    assert_bit_equal(padded, (*rows, *fp8.quantize_colwise_per_group(x, offs, alignment=16, **options)))
    w = LAYOUTS[layout](torch.randn(3, 37, 20, dtype=torch.bfloat16, device=triton_path.device))
    both = fp8.quantize_colwise_transpose_3d(w, **options)
    assert_bit_equal(both, (*fp8.quantize_colwise_3d(w, **options), *fp8.quantize_transpose_3d_atomic(w, **options)))


def test_default_dtype_is_that_of_the_device(triton_path: KernelPath) -> None:
    from kernels.hardware import default_fp8_dtype

    x, _ = _columns(triton_path.device)
    assert fp8.quantize_rowwise(x)[0].dtype == default_fp8_dtype(triton_path.device)


# ---------------------------------------------------------------------------------------------------
# Real shapes, on a GPU


Shape = shapes.MatrixShape | shapes.GroupedShape | shapes.DualShape | shapes.WeightShape

REAL: dict[str, tuple[Shape, ...]] = {
    "matrix": shapes.MATRICES + shapes.MATRICES_NIGHTLY,
    "grouped": shapes.GROUPED + shapes.GROUPED_NIGHTLY,
    "grouped-transposed": shapes.GROUPED + shapes.GROUPED_NIGHTLY,
    "dual": shapes.DUALS,
    "weight": shapes.WEIGHTS + shapes.WEIGHTS_NIGHTLY,
}


REAL_CASES = (
    [
        pytest.param(q, shape, id=f"{q.name}-{shape}")
        for q in SEVEN + BLOCKS
        for shape in REAL[q.kind]
        if shape.elements < 2**31  # above: test_quantize_behaviour.py
    ]
    if GPU
    else [pytest.param(None, None, marks=pytest.mark.skip("needs a GPU: the real shapes of the contract"))]
)


@pytest.mark.parametrize(("q", "shape"), REAL_CASES)
def test_real_shapes(q: Quantizer, shape: Shape, gpu: torch.device) -> None:
    arguments = shape.inputs(gpu)
    if q.kind == "grouped-transposed":
        arguments = (arguments[0].t(), arguments[1])
    check(q, arguments, str(shape), **{q.flag: True})
