"""The grouped product of each implementation, forward and both gradients, where such products go wrong.

On a GPU the Triton kernel runs compiled, and PyTorch's product natively where it has one. Without one the kernel
runs through Triton's interpreter, and PyTorch's product is its own loop on the CPU: what we do around it is tried.
"""

from __future__ import annotations

import itertools
import re
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import grouped
from kernels.fp8.inputs import LAYOUTS, SHARING_LAYOUTS, far_apart
from kernels.fp8.shapes import Split, around_block, random_split, splits
from kernels.grouped import configs, library, reference
from kernels.grouped.configs import Config, Form
from kernels.hardware import HARDWARE
from kernels.launch import MAX_CANDIDATES, Tiles
from tests.kernels import elsewhere
from tests.kernels.grouped_products import NAMES, Product, assert_right
from tests.kernels.guards import guarded_allocations, no_device_waits, no_host_reads
from tests.kernels.paths import GPU, VARIABLE, every_candidate
from tests.nursery import Nursery

FORMS = pytest.mark.parametrize("form", ["rows", "groups"])
# An empty group, tails against every tile, and rows past the last group.
ODD = Split("odd", (19, 0, 14), unused=4)
DEVICE = torch.device(GPU or "cpu")


@pytest.fixture(params=["triton", "torch", "loop"])
def impl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each implementation. The interpreter is open for ours alone, so that the others run as users have them."""
    if request.param == "triton" and GPU is None:
        monkeypatch.setenv(VARIABLE, "1")
    else:
        monkeypatch.delenv(VARIABLE, raising=False)
    return str(request.param)


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernel can run: compiled on a GPU, else interpreted."""
    if GPU is None:
        monkeypatch.setenv(VARIABLE, "1")
    assert grouped.path(DEVICE, impl="triton") == ("triton" if GPU else "interpreter")


# The loop is the reference itself, which the oracle judges in the tests of every implementation.
KERNELS = pytest.mark.parametrize("impl", ["triton", "torch"], indirect=True)

# ---------------------------------------------------------------------------------------------------
# Splits, sizes, layouts, dtypes


# The interpreter takes 20 ms a tile of 32 x 32 x 32; one hot group of 240 rows is long enough to be walked by all, and
# one of 976 no other case.
SPLITS = [s for s in splits(hot_rows=4096 if GPU else 256) if GPU or s.name != "one-long"]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@KERNELS
@FORMS
def test_splits(form: str, split: Split, impl: str) -> None:
    """Empty, skewed and odd groups, more groups than rows, and NaN past the last one."""
    assert_right(Product.draw(form, split, 24, 40, DEVICE), grouped.grouped_mm, str(split), impl=impl)


@pytest.mark.parametrize("block", [16, 64, 128, 256] if GPU else [16])  # tiles' heights and depths; 32 is in `splits`
@KERNELS
@FORMS
def test_groups_around_a_block(form: str, block: int, impl: str) -> None:
    assert_right(Product.draw(form, around_block(block), 17, 24, DEVICE), grouped.grouped_mm, str(block), impl=impl)


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        (1, 1),  # one column, one product
        (7, 47),  # below one vector access, odd
        (32, 64),  # whole tiles of the interpreter
        (33, 31),  # one over, one under
        (48, 129),  # wider than a tile, one over
        *([(127, 1000), (1408, 2048), (4097, 129)] if GPU else []),
    ],
)
@KERNELS
@FORMS
def test_widths(form: str, inner: int, outer: int, impl: str) -> None:
    """A mask by tile writes into the next row, or multiplies what lies behind the operand."""
    assert_right(Product.draw(form, ODD, inner, outer, DEVICE), grouped.grouped_mm, f"{inner}x{outer}", impl=impl)


@pytest.mark.parametrize(
    ("sizes", "inner", "outer"), [((), 8, 8), ((0, 0), 8, 8), ((3, 5), 0, 8), ((3, 5), 8, 0), ((), 0, 0)]
)
@FORMS
def test_nothing_to_multiply(form: str, sizes: tuple[int, ...], inner: int, outer: int, impl: str) -> None:
    """No groups, no rows, no width: zeros of the right shape, and the graph is whole."""
    for unused in (0, 3):
        product = Product.draw(form, Split("", sizes, unused=unused), inner, outer, DEVICE)
        assert_right(product, grouped.grouped_mm, f"{sizes} {inner}x{outer}", impl=impl)


# b and the output's gradient do not meet in one product but in dgrad, where each has the other role.
WHERE = pytest.mark.parametrize("where", [("a_layout",), ("b_layout", "grad_layout")], ids=["a", "b and grad"])


@pytest.mark.parametrize("layout", LAYOUTS)
@WHERE
@KERNELS
@FORMS
def test_layouts(form: str, where: tuple[str, ...], layout: str, impl: str) -> None:
    """The same values elsewhere in memory, surrounded by NaN: no stride is refused."""
    split = Split("", (9, 0, 6), unused=1)  # 16 rows: aligned where the layout is
    product = Product.draw(form, split, 16, 24, DEVICE, **dict.fromkeys(where, LAYOUTS[layout]))
    assert_right(product, grouped.grouped_mm, layout, impl=impl)


@pytest.mark.parametrize("layout", SHARING_LAYOUTS)
@WHERE
@KERNELS
@FORMS
def test_layouts_that_share_memory(form: str, where: tuple[str, ...], layout: str, impl: str) -> None:
    """Stride 0, as in the gradient of a sum, and windows that overlap."""
    product = Product.draw(form, Split("", (9, 0, 7)), 16, 24, DEVICE, **dict.fromkeys(where, SHARING_LAYOUTS[layout]))
    assert_right(product, grouped.grouped_mm, layout, impl=impl)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@FORMS
def test_dtypes(form: str, dtype: torch.dtype, impl: str) -> None:
    assert_right(Product.draw(form, ODD, 40, 24, DEVICE, dtype=dtype), grouped.grouped_mm, str(dtype), impl=impl)


@pytest.mark.parametrize(("length", "stride"), [(3, 2**30), (40, 2**31)])
@pytest.mark.parametrize("dim", [0, 1, 2])
@FORMS
def test_offsets_past_two_to_the_31(form: str, dim: int, length: int, stride: int, ours: None) -> None:
    """Indices far apart in memory: no product of index and stride may be taken in 32 bits."""
    if GPU == "cuda" and torch.cuda.mem_get_info()[0] < 4 * max(2**32, length * stride) + (2 << 30):
        pytest.skip("needs more free device memory: a GPU backs every page of the buffer")

    def far(x: torch.Tensor) -> torch.Tensor:
        return far_apart(x, dim, stride)

    split = Split("", (1, 0, length - 1))
    three_dimensional = "b_layout" if form == "rows" else "grad_layout"
    far_operand = {three_dimensional: far} if dim == 2 else {"a_layout": far}
    product = Product.draw(form, split, length, 8, DEVICE, **far_operand)
    assert_right(product, grouped.grouped_mm, f"{length} indices, {stride} apart", impl="triton")


def test_the_contraction_is_accumulated_in_fp32(impl: str) -> None:
    """256 ones and a half: in bf16 the half is lost at every step, and in fp32 none is."""
    a = torch.ones(2, 512, dtype=torch.bfloat16, device=DEVICE)
    a[:, 256:] = 0.5
    b = torch.ones(1, 512, 8, dtype=torch.bfloat16, device=DEVICE)
    offs = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    assert grouped.grouped_mm(a, b, offs, impl=impl).eq(384).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("a_layout", ["row-major", "column-major"])
@FORMS
def test_a_nan_stays_in_its_group(form: str, a_layout: str, impl: str) -> None:
    """Neighbours in a tile, or in a block of the contraction, may not meet; column-major ones are loaded in bulk."""
    product = Product.draw(form, Split("", (9, 12, 11)), 16, 24, DEVICE, a_layout=LAYOUTS[a_layout])
    for operand in (product.a,) if form == "rows" else (product.a, product.b.t()):
        clean = operand.clone()
        (operand[12] if form == "rows" else operand[:, 12]).fill_(torch.nan)
        got = grouped.grouped_mm(product.a, product.b, product.offs, impl=impl)  # type: ignore[arg-type]
        bad = ~got.isfinite()
        owner = bad[12] if form == "rows" else bad[1]
        assert owner.any()
        assert bad.sum() == owner.sum(), "what is not finite reached another row or group"
        operand.copy_(clean)


@FORMS
def test_gradients_can_be_differentiated(form: str, impl: str) -> None:
    """Each product is the other's gradient; that of the gradient is the loop's."""
    product = Product.draw(form, Split("", (5, 0, 8)), 12, 8, DEVICE, dtype=torch.float32)

    def second(function: Any, dtype: torch.dtype, **options: Any) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().to(dtype).requires_grad_() for x in (product.a, product.b, product.grad)]
        output = function(*leaves[:2], product.offs, **options)
        first = torch.autograd.grad(output, leaves[:2], leaves[2], create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)

    got = second(grouped.grouped_mm, torch.float32, impl=impl)
    for one, truth in zip(got, second(reference.grouped_mm, torch.float64), strict=True):
        torch.testing.assert_close(one.double(), truth, rtol=1e-5, atol=1e-4)


# ---------------------------------------------------------------------------------------------------
# Configurations


@FORMS
def test_every_candidate_is_right(form: Form, ours: None) -> None:
    """Also those that today's choice does not use, for aligned operands and others."""
    for inner, outer in ((24, 40), (23, 41)):
        split = Split("tall", (7, 0, 70, 35), unused=2)
        product = Product.draw(form, split, inner, outer, DEVICE)

        def right(number: int, product: Product = product, widths: str = f"{inner}x{outer}") -> None:
            assert_right(product, grouped.grouped_mm, f"{widths} #{number}", impl="triton", candidate=number)

        assert list(every_candidate(right, least=1))


@FORMS
def test_operands_through_descriptors(form: str, ours: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bulk copy reads whole units of 16 bytes: where a group may start within one, it is left out."""
    described: list[Any] = []
    over = Tiles.over

    def kept(tiles: Tiles, *of: Any) -> Any:
        described.append(over(tiles, *of))
        return described[-1]

    monkeypatch.setattr(Tiles, "over", kept)
    numbers = [n for n, c in enumerate(_candidates(form)) if c.descriptors]
    assert numbers or GPU, "the interpreter's table has no candidate with descriptors"
    # Rows past whole blocks of a group: one, none, and one again.
    split = Split("", (17, 0, 32, 1), unused=2)
    for number in numbers:
        single = Product.draw(form, Split("", (1,)), 24, 40, DEVICE)  # a size of 1 may have any stride
        assert_right(single, grouped.grouped_mm, f"#{number} of one row", impl="triton", candidate=number)
        for a_layout, b_layout in itertools.product(("row-major", "column-major"), repeat=2):
            layouts = {"a_layout": LAYOUTS[a_layout], "b_layout": LAYOUTS[b_layout]}
            product = Product.draw(form, split, 24, 40, DEVICE, **layouts)
            because = f"#{number} {a_layout} {b_layout}"
            described.clear()
            rows_apart = a_layout == "row-major" if form == "rows" else (a_layout, b_layout) == COLUMN_ROW
            candidate = number if rows_apart or not GPU else None  # what cannot be read whole has a table of its own
            grouped.grouped_mm(product.a, product.b, product.offs, impl="triton", candidate=candidate)
            assert len(described) == 2 * rows_apart, f"{because}: {len(described)} descriptors"
            for each in described:
                type(each)(**vars(each))  # what Triton checks holds
            assert_right(product, grouped.grouped_mm, because, impl="triton", candidate=candidate)


COLUMN_ROW = ("column-major", "row-major")


def _candidates(form: Any) -> tuple[Config, ...]:
    from kernels.hardware import arch_of

    return configs.candidates(arch_of(DEVICE), form, 2, 40, True)


ARCHS = sorted({*HARDWARE, "sm_999"})


@pytest.mark.parametrize("arch", ARCHS)
def test_candidates_fit_their_architecture(arch: str) -> None:
    """Shared memory and threads, for every choice that the table can make; the compiler checks neither."""
    hardware = HARDWARE.get(arch)
    for itemsize in (2, 4):
        for outer in (1, 768, 1408, 8192):
            for aligned in (True, False):
                forms = [configs.candidates(arch, form, itemsize, outer, aligned) for form in ("rows", "groups")]
                assert len(forms[0]) == len(forms[1]), "one number picks a candidate forward and backward"
                assert 1 <= len(forms[0]) <= MAX_CANDIDATES
                for config in (*forms[0], *forms[1]):
                    if hardware is not None and hardware.shared_memory_bytes is not None:
                        assert config.shared_memory_bytes(itemsize) <= hardware.shared_memory_bytes
                        assert hardware.max_warps is not None
                        assert config.warps <= hardware.max_warps


def test_a_narrow_tile_goes_first_where_a_wide_one_fits_badly() -> None:
    assert configs.candidates("sm_90", "rows", 2, 8192, True)[0].width == 256
    assert configs.candidates("sm_90", "rows", 2, 1408, True)[0].width == 128


DIRECTIONS = ("forward", "dgrad", "wgrad")


@pytest.fixture(scope="module")
def compiled(nursery: Nursery) -> list[dict[str, Any]]:
    """What the default candidates become for two architectures, in a process whose kernels are not interpreted."""
    return elsewhere.compiled(nursery, "targets", "products", "sm_90", "gfx942", *DIRECTIONS)


def test_compiles_for_hopper(compiled: list[dict[str, Any]]) -> None:
    """Warp-group products, bulk copies and no spills, in all three directions."""
    found = [one for one in compiled if one["arch"] == "sm_90"]
    assert [(one["case"], one["gluon"]) for one in found] == list(zip(DIRECTIONS, (False, False, True), strict=True))
    for one in found:
        assert one["wgmma"] > 0, one
        assert one["bulk_loads"] > 0, one
        assert one["stack_bytes"] == 0, one
        assert one["shared_bytes"] <= 227 << 10, one


def test_compiles_for_cdna3(compiled: list[dict[str, Any]]) -> None:
    """Matrix instructions, 128-bit loads, no spills, 64 KB."""
    found = [one for one in compiled if one["arch"] == "gfx942"]
    assert len(found) == 3
    for one in found:
        assert one["mfma"] > 0, one
        assert one["wide_loads"] > 0, one
        assert one["vgpr_spill_count"] == one["private_segment_fixed_size"] == 0, one
        assert one["shared_bytes"] <= 64 << 10, one


# ---------------------------------------------------------------------------------------------------
# Which way a call takes


def test_path_says_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert grouped.path("cpu") == "loop"
    assert grouped.path("cpu", impl="torch") == "torch"
    if GPU is None:
        with pytest.raises(ValueError, match=r"^impl: is 'triton', which cannot run on cpu now; choose 'auto'"):
            grouped.path("cpu", impl="triton")
        monkeypatch.setenv(VARIABLE, "1")
        assert grouped.path("cpu") == grouped.path("cpu", impl="triton") == "interpreter"
        assert grouped.path("cpu", impl="loop") == "loop"


@FORMS
def test_auto_is_what_path_says(form: Form, impl: str) -> None:
    """`auto` gives the bits of the implementation that `path` names, through forward and backward."""
    product = Product.draw(form, ODD, 24, 40, DEVICE)
    auto = product.run(grouped.grouped_mm)
    forms: tuple[Form, ...] = (form, "rows", "groups" if form == "rows" else "rows")  # of output and gradients
    for number, one in enumerate(forms):
        taken = grouped.path(DEVICE, groups=3, form=one, aligned=form == "rows")  # (K, R) has odd rows
        named = {"interpreter": "triton"}.get(taken, taken)
        other = product.run(grouped.grouped_mm, impl=named)[number]
        assert torch.equal(auto[number].nan_to_num(), other.nan_to_num()), NAMES[number]


def test_our_wgrad_on_hopper_is_for_aligned_operands() -> None:
    assert configs.preference("sm_90", "groups")[0] == "triton"
    assert configs.preference("sm_90", "groups", aligned=False)[0] == "torch"
    assert configs.preference("sm_90", "rows")[0] == configs.preference("sm_100", "groups")[0] == "torch"


def test_a_wgrad_whose_rows_are_no_whole_units_takes_another_kernel() -> None:
    """The bulk copy reads and writes rows that start on 16 bytes."""
    for outer in (8192, 1408):
        assert configs.candidates("sm_90", "groups", 2, outer, True)[0].specialised
    for outer, itemsize, aligned in ((8191, 2, True), (8192, 4, True), (8192, 2, False)):
        assert not any(c.specialised for c in configs.candidates("sm_90", "groups", itemsize, outer, aligned))


def test_native_is_asked_by_form_and_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's product is `auto`'s choice where the probe says so, and not for more groups than it takes."""
    asked: list[torch.dtype] = []

    def native(device: torch.device, dtype: torch.dtype) -> bool:
        asked.append(dtype)
        return dtype == torch.bfloat16

    monkeypatch.setattr(library, "runs_natively", native)
    monkeypatch.delenv(VARIABLE, raising=False)
    otherwise = "triton" if GPU else "loop"
    assert grouped.path(DEVICE, groups=library.MAX_GROUPS) == "torch"
    assert grouped.path(DEVICE, torch.float32) == otherwise
    assert asked == [torch.bfloat16, torch.float32]
    assert grouped.path(DEVICE, groups=library.MAX_GROUPS + 1) == otherwise
    monkeypatch.setitem(configs.PREFERENCES, ("cpu", "groups"), ("loop", "torch"))
    assert grouped.path("cpu", form="groups") == "loop"
    assert grouped.path("cpu", form="rows") == "torch"


def test_a_probe_without_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """That memory is full says nothing about the product: the next call asks again."""
    for name, value in {
        "device": lambda _: nullcontext(),
        "is_current_stream_capturing": lambda: False,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda _: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    answers = iter([torch.OutOfMemoryError("full"), torch.zeros(()), torch.zeros(())])

    def product(*_: Any, **__: Any) -> torch.Tensor:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(torch, "_grouped_mm", product)
    library._probe.cache_clear()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            library._probe(torch.device("cpu"), torch.bfloat16)
        assert library._probe(torch.device("cpu"), torch.bfloat16)
    finally:
        library._probe.cache_clear()


# ---------------------------------------------------------------------------------------------------
# Registration, compilation, memory

OPERATORS = {
    "rows": torch.ops.perfguard_kernels.grouped_mm_rows,
    "groups": torch.ops.perfguard_kernels.grouped_mm_groups,
}


@FORMS
def test_opcheck(form: str) -> None:
    """Schema, fake and autograd registration, and the same traced with symbolic sizes."""
    product = Product.draw(form, Split("", (9, 0, 7)), 12, 8, DEVICE)
    operands = product.a.requires_grad_(), product.b.requires_grad_()
    torch.library.opcheck(OPERATORS[form].default, (*operands, product.offs, "auto", None))


@FORMS
def test_fake_results_have_the_real_form(form: str, impl: str) -> None:
    """Shape, dtype and strides, for what is compiled around the operator; a width of 47 is padded by PyTorch."""
    product = Product.draw(form, ODD, 40, 47, DEVICE)
    operands = product.a, product.b, product.offs
    real = grouped.grouped_mm(*operands, impl=impl)  # type: ignore[arg-type]
    with FakeTensorMode() as mode:
        fake = grouped.grouped_mm(*(mode.from_tensor(x) for x in operands), impl=impl)  # type: ignore[arg-type]
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


@FORMS
def test_compiles_whole_with_dynamic_rows(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fullgraph, forward and backward in one graph each, for every number of rows and every split."""
    from torch._dynamo.testing import CompileCounterWithBackend

    monkeypatch.delenv(VARIABLE, raising=False)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor" if GPU else "aot_eager")
    compiled = torch.compile(
        lambda a, b, offs: grouped.grouped_mm(a * 2, b, offs) + 1, backend=counter, fullgraph=True, dynamic=True
    )
    for rows in (33, 48, 57):
        product = Product.draw(form, random_split(rows, 3, seed=rows), 24, 40, DEVICE)
        got = product.run(compiled)
        expected = product.run(lambda a, b, offs: reference.grouped_mm(a * 2, b, offs) + 1, torch.float64)
        for one, truth in zip(got, expected, strict=True):
            torch.testing.assert_close(one.double(), truth, rtol=2e-2, atol=0.3)
            assert one.isfinite().all()
    assert counter.frame_count == 1, f"{counter.frame_count} graphs for three numbers of rows"


@pytest.mark.parametrize("needs", ["a", "b", "both", "none"])
@FORMS
def test_saves_what_the_gradients_need(form: str, needs: str, impl: str) -> None:
    """The other operand, by reference, and offs: nothing else, and nothing where no gradient is asked for."""
    product = Product.draw(form, ODD, 24, 40, DEVICE)
    a = product.a.requires_grad_(needs in ("a", "both"))
    b = product.b.requires_grad_(needs in ("b", "both"))
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):  # type: ignore[func-returns-value]
        output = grouped.grouped_mm(a, b, product.offs, impl=impl)  # type: ignore[arg-type]
    expected = {
        "a": {b.data_ptr(), product.offs.data_ptr()},
        "b": {a.data_ptr(), product.offs.data_ptr()},
        "both": {a.data_ptr(), b.data_ptr(), product.offs.data_ptr()},
        "none": set(),
    }[needs]
    assert {x.data_ptr() for x in saved} == expected
    assert output.requires_grad == (needs != "none")
    if needs != "none":
        output.backward(product.grad)
        assert (a.grad is not None, b.grad is not None) == (needs in ("a", "both"), needs in ("b", "both"))


def test_a_weight_gradient_lies_as_its_weight(impl: str) -> None:
    """Else autograd copies it once more, at the size of the weights."""
    product = Product.draw("rows", ODD, 24, 40, DEVICE)
    for layout in ("row-major", "column-major"):
        leaf = LAYOUTS[layout](product.b).requires_grad_()
        output = grouped.grouped_mm(product.a, leaf, product.offs, impl=impl)  # type: ignore[arg-type]
        (grad,) = torch.autograd.grad(output, leaf, product.grad)
        assert grad.stride() == leaf.stride()


@pytest.mark.parametrize("ends", [1, 3, 5])
def test_groups_without_an_end_are_refused(ends: int, ours: None) -> None:
    """The kernel would read behind the ends, or leave groups as they are."""
    offs = torch.zeros(ends, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=f"offs: has {ends} ends, the output has 4 groups; give one end a group"):
        library.clear_groups(torch.ones(4, 3, 5, device=DEVICE), offs)


@FORMS
def test_the_library_product_calls_these_kernels(form: str, ours: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Triton runs they are used, since torch operators would read and write the whole output."""
    called: list[str] = []
    for name in ("clear_rows", "clear_groups"):
        clear = getattr(library.launch, name)
        monkeypatch.setattr(library.launch, name, lambda *x, n=name, c=clear: called.append(n) or c(*x))
    assert_right(Product.draw(form, ODD, 24, 40, DEVICE), grouped.grouped_mm, "cleared by kernels", impl="torch")
    assert set(called) == {"clear_rows", "clear_groups"}


@FORMS
def test_the_host_reads_no_data(form: str, ours: None) -> None:
    """Neither `offs` nor anything else, forward and backward."""
    product = Product.draw(form, ODD, 24, 40, DEVICE)
    product.run(grouped.grouped_mm, impl="triton")  # compilation may read what it likes
    with no_host_reads(), no_device_waits():
        product.run(grouped.grouped_mm, impl="triton")


@FORMS
def test_wrong_ends_touch_no_foreign_memory(form: str, ours: None) -> None:
    """Ends that decrease or pass the buffer give wrong numbers, and stay within the operands and the output."""
    product = Product.draw(form, Split("", (9, 12, 11)), 24, 40, DEVICE)
    for ends in ([20, 5, 32], [9, 21, 1000], [-7, 40, 12]):
        offs = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
        with guarded_allocations("nan"):
            grouped.grouped_mm(product.a, product.b, offs, impl="triton")


@FORMS
def test_calls_of_other_sizes_between(form: str, ours: None) -> None:
    """The same rows as 16, 1, 4 and 16 groups in one process, each right and each repeat bit-equal."""
    seen: dict[int, torch.Tensor] = {}
    for groups in (16, 1, 4, 16):
        torch.manual_seed(groups)
        product = Product.draw(form, random_split(40, groups), 8, 24, DEVICE)
        output = assert_right(product, grouped.grouped_mm, f"{groups} groups", impl="triton")[0]
        assert torch.equal(seen.setdefault(groups, output), output)


# ---------------------------------------------------------------------------------------------------
# Wrong arguments

A, B, OFFS = torch.zeros(8, 4), torch.zeros(2, 4, 6), torch.tensor([3, 8], dtype=torch.int32)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": [1.0]}, "a: is a list; give a tensor of shape (R, K) or (K, R)"),
        ({"a": A[0]}, "a: has 1 dimensions, shape (4,); give 2"),
        ({"b": B[None]}, "b: has 4 dimensions, shape (1, 2, 4, 6); give 3, (E, K, N), or 2, (R, N)"),
        ({"a": A.int()}, "a: is torch.int32; cast it to one of torch.bfloat16, "),
        ({"b": B.half()}, "b: is torch.float16, a is torch.float32; cast one of them"),
        ({"b": B.to("meta")}, "b: is on meta, a is on cpu; move one of them"),
        ({"b": B[:, :3]}, "b: has inner width 3, a has 4; give b of shape (E, K, N)"),
        ({"b": A}, "b: has 8 rows, a has 4 columns; give a (K, R) and b (R, N)"),
        ({"offs": OFFS[:1]}, "offs: has 1 ends, b has 2 experts; give one end an expert"),
        ({"offs": OFFS.long()}, "offs: is torch.int64; may be torch.int32"),
        ({"offs": OFFS[None]}, "offs: has 2 dimensions, shape (1, 2); may have 1"),
        ({"offs": torch.tensor([5, 3], dtype=torch.int32)}, "offs: decreases to 3 at group 1, after 5; "),
        ({"offs": torch.tensor([5, 9], dtype=torch.int32)}, "offs: ends at 9; may end at 8 at most"),
        ({"impl": "cublas"}, "impl: is 'cublas'; choose one of auto, torch, triton, loop"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        grouped.grouped_mm(**{"a": A, "b": B, "offs": OFFS, **wrong})


# ---------------------------------------------------------------------------------------------------
# On a GPU alone


@pytest.mark.parametrize("taken", ["triton", "torch"])
@FORMS
def test_replays_in_a_cuda_graph(form: Form, taken: str, gpu: torch.device) -> None:
    """Captured once, right for other data and other offsets."""
    if gpu.type != "cuda":
        pytest.skip("needs CUDA graphs: this device is no CUDA or HIP device")
    if taken == "torch" and not library.runs_natively(gpu, torch.bfloat16):
        pytest.skip("needs a native torch._grouped_mm: it reads offs on the host here")
    first = Product.draw(form, Split("", (700, 0, 300), unused=24), 192, 256, gpu)
    second = Product.draw(form, Split("", (0, 1000, 1), unused=23), 192, 256, gpu)
    static = Product(form, *(x.clone() for x in (first.a, first.b, first.offs, first.grad)))
    static.run(grouped.grouped_mm, impl=taken)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = static.run(grouped.grouped_mm, impl=taken)
    for product in (first, second, first):
        for target, source in zip(
            (static.a, static.b, static.offs, static.grad),
            (product.a, product.b, product.offs, product.grad),
            strict=True,
        ):
            target.detach().copy_(source)
        for result in results:
            result.fill_(torch.nan)
        graph.replay()
        for one, other in zip(results, product.run(grouped.grouped_mm, impl=taken), strict=True):
            assert torch.equal(one, other)


@FORMS
def test_a_walk_over_row_counts_compiles_once(form: Form, gpu: torch.device) -> None:
    from kernels.grouped.groups import multiply_groups
    from kernels.grouped.rows import multiply_rows

    def compiled() -> int:
        return sum(
            len(cache[0]) for kernel in (multiply_rows, multiply_groups) for cache in kernel.device_caches.values()
        )

    def call(rows: int) -> None:
        Product.draw(form, random_split(rows, 4), 256, 512, gpu).run(grouped.grouped_mm, impl="triton")

    call(256)
    after_first = compiled()
    for rows in (512, 1024, 768, 4096, 640, 336, 2000, 16):
        call(rows)
    assert compiled() == after_first


def test_more_than_two_to_the_31_outputs(gpu: torch.device, impl: str) -> None:
    rows, outer = 270_000, 8192
    if gpu.type != "cuda" or torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free device memory")
    a = torch.randn(rows, 64, dtype=torch.bfloat16, device=gpu)
    b = torch.randn(2, 64, outer, dtype=torch.bfloat16, device=gpu)
    offs = torch.tensor([rows - 2000, rows - 10], dtype=torch.int32, device=gpu)
    got = grouped.grouped_mm(a, b, offs, impl=impl)[-3000:]  # type: ignore[arg-type]
    tail = reference.grouped_mm(a[-3000:].double(), b.double(), offs - (rows - 3000))
    torch.testing.assert_close(got.double(), tail, rtol=1e-2, atol=1e-1)
