"""What other sizes and layouts cost: what a kernel is compiled for, where its grid grows, what is copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from perfguard.check.hard_inputs.other_calls import other_calls
from perfguard.judge.exact import judge_exact
from perfguard.measure.binaries.call_binaries import Binaries
from perfguard.measure.metrics import binary
from perfguard.measure.metrics.subject import Subject
from perfguard.model.call import Call, Hard
from perfguard.model.records import Pass, Reading, Verdict, Word
from tests.measure.metrics.binaries import Reader

# Each row with a factor of its own, several programs for a head.
ROWS = """
import torch
import triton
import triton.language as tl


@triton.jit
def rows_kernel(x, f, out, tokens, heads, row, D: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1)
    at = (token[:, None] * heads + head) * D + tl.arange(0, D)[None, :]
    inside = (token < tokens)[:, None]
    factor = tl.load(f + token * row + head, mask=token < tokens)
    tl.store(out + at, tl.load(x + at, mask=inside) * factor[:, None], mask=inside)


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(context, x, f):
        context.save_for_backward(f)
        return launched(x.contiguous(), f)

    @staticmethod
    def backward(context, grad):
        (f,) = context.saved_tensors
        return launched(grad.contiguous(), f), None


def launched(x, f):
    tokens, heads, width = x.shape
    if x.device.type == "cpu":
        return x * f[..., None]
    if width & (width - 1):
        raise ValueError("a power of two")
    out = torch.empty_like(x)
    rows_kernel[(triton.cdiv(tokens, 16), heads)](x, f, out, tokens, heads, f.stride(0), D=width, BLOCK=16)
    return out


def call(x, f):
    return Rows.apply(x, f)
"""
X, F = torch.randn(20, 3, 16), torch.rand(20, 3)
BOTH = ("sm_90", "gfx942")


def reading(reader: Reader, call: Call, direction: Pass = "forward", targets: tuple[str, ...] = BOTH) -> Reading | None:
    call = replace(call, others=other_calls(call))
    subject = Subject(call.run, direction=direction, call=call, binaries=Binaries(targets, reader.compiler))
    readings = binary.read(subject, reader.device)
    return next((each for each in readings if each.metric == "other_inputs"), None)


def rows(reader: Reader, *pairs: tuple[str, str], grad: bool = False, **options: Any) -> Call:
    source = ROWS
    for old, new in pairs:
        assert old in source
        source = source.replace(old, new)
    return reader.call(source, X.clone().requires_grad_(grad), F, **options)


def changed(reader: Reader, *pairs: tuple[str, str], grad: bool = False, direction: Pass = "forward") -> Verdict:
    """The verdict on a change of the source, beside the record of `ROWS`."""
    before = reading(reader, rows(reader, grad=grad), direction)
    after = reading(reader, rows(reader, *pairs, grad=grad), direction)
    assert before is not None
    assert after is not None
    return judge_exact(after, before.value)


def test_what_is_read_of_a_kernel(reader: Reader) -> None:
    found = reading(reader, rows(reader))
    assert found is not None
    assert found.value == {
        "copies (transposed argument 0)": 1,
        "copies (sliced argument 0)": 1,
        "copies (transposed argument 1)": 0,
        "copies (sliced argument 1)": 0,
        "copies (sizes)": 0,
        "host reads (layouts)": 0,
        "launches (layouts)": 1,
        "host reads (sizes)": 0,
        "launches (sizes)": 1,
        "compilations of rows_kernel (argument 0 dim 0)": 1,
        "specialised sizes of rows_kernel (argument 0 dim 0)": 1,  # the count of tokens
        "grid axis of rows_kernel (argument 0 dim 0)": 0,
        "compilations of rows_kernel (argument 0 dim 1)": 1,
        "specialised sizes of rows_kernel (argument 0 dim 1)": 1,
        "grid axis of rows_kernel (argument 0 dim 1)": 1,
        "compilations of rows_kernel (argument 0 dim 2)": 2,  # 32 and 64: others are refused
        "specialised sizes of rows_kernel (argument 0 dim 2)": 0,  # it is a constant
        **{f"refused (argument 0 and argument 1 as {name})": 0 for name in ("bfloat16", "float16", "float64")},
        **{f"refused (argument {number} as bfloat16)": 0 for number in (0, 1)},
        "refused (layouts)": 0,
        "refused (sizes of 0)": 0,
        "refused (sizes of 1)": 0,
        "other dtypes": 0,  # Its reference returns nothing.
    }
    assert "grid axis of rows_kernel (argument 0 dim 1) is 1: it ends at 65,535 programs" in found.note
    assert "rows_kernel is compiled anew for each size of argument 0 dim 2: its constant D is 32, 64" in found.note


def scaled(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return x * factor


REFUSING = {
    "refused (layouts) 0 -> 2": lambda x, factor: x.view(-1).view(x.shape) * factor,
    "refused (sizes of 0) 0 -> 1": lambda x, factor: x.reshape(len(x), 1, -1).flatten(1) * factor,
    "refused (sizes of 1) 0 -> 2": lambda x, factor: x.view(len(x), len(factor)) * factor,
    "other dtypes 0 -> 3": lambda x, factor: (x * factor).float(),
}


@pytest.mark.parametrize("words", REFUSING)
def test_what_torchs_operators_refuse_and_dtypes_of_results_are_compared(reader: Reader, words: str) -> None:
    args = (torch.randn(20, 32), torch.rand(32))
    calls = [Call(fn, args, scaled, hard=Hard()) for fn in (torch.mul, REFUSING[words])]
    before, after = (reading(reader, call) for call in calls)
    assert before is not None
    assert after is not None
    assert words in judge_exact(after, before.value).reason
    assert ("is refused" in after.note) is words.startswith("refused")


def test_views_that_are_lazily_conjugate_are_refused(reader: Reader) -> None:
    args = (torch.randn(4, 3, dtype=torch.complex64),)
    calls = [
        Call(fn, args, torch.real, hard=Hard()) for fn in (lambda x: x.real, lambda x: torch.view_as_real(x)[..., 0])
    ]
    found = [reading(reader, call) for call in calls]
    assert [each.value["refused (layouts)"] for each in found if each is not None] == [0, 1]


@pytest.mark.parametrize("targets", [("sm_90",), ("sm_90", "sm_80"), ("gfx942", "sm_90")])
def test_other_settings_of_targets_read_the_same(reader: Reader, targets: tuple[str, ...]) -> None:
    """Of a call that copies for old chips alone."""
    copying = "x = x.clone() if torch.cuda.get_device_capability(x.device) < (9, 0) else x"
    call = rows(reader, ("tokens, heads, width = x.shape", f"tokens, heads, width = x.shape\n    {copying}"))
    found, usual = reading(reader, call, targets=targets), reading(reader, call, targets=("sm_80", "sm_90"))
    assert found is not None
    assert usual is not None
    assert found.value == usual.value


OUT = "    out = torch.empty_like(x)"


def test_a_derived_call_ends_after_a_number_of_operators_and_keeps_its_counts(reader: Reader) -> None:
    """A loop may take seconds, and a limit in seconds would end it elsewhere each time."""
    found = reading(reader, rows(reader, (OUT, OUT + "\n    for _ in range(10_000):\n        f = f + 1")))
    assert found is not None
    assert found.value["copies (transposed argument 0)"] == 1  # It comes before the loop.
    assert not any(part.startswith("launches") for part in found.value)  # The launch comes after it.


FAULTS = {
    "tokens are a constant": (
        (("out, tokens, heads, row", "out, tokens: tl.constexpr, heads, row"),),
        "compilations of rows_kernel (argument 0 dim 0) 1 -> 3 (+200.0 %)",
    ),
    "the number of tiles is a constant": (
        (("BLOCK: tl", "TILES: tl.constexpr, BLOCK: tl"), ("BLOCK=16", "TILES=triton.cdiv(tokens, 4), BLOCK=16")),
        "compilations of rows_kernel (argument 0 dim 0) 1 -> 3 (+200.0 %)",
    ),
    "axes in another order": (
        (
            ("id(0)", "id(2)"),
            ("id(1)", "id(0)"),
            ("(triton.cdiv(tokens, 16), heads)", "(heads, 1, triton.cdiv(tokens, 16))"),
        ),
        "grid axis of rows_kernel (argument 0 dim 0) 0 -> 1",
    ),
    "a copy of strided factors": (
        ((OUT, "    f = f.contiguous()\n" + OUT),),
        "copies (transposed argument 1) 0 -> 1",
    ),
    "a read of the host for odd sizes": (
        ((OUT, "    tokens += 0 * int(f[0, 0]) if tokens % 2 else 0\n" + OUT),),
        "host reads (sizes) 0 -> 1",
    ),
    "a launch for each of some layouts": (
        (("    return out\n", "    return out if f.stride(1) == 1 else launched(out, torch.ones(f.shape))\n"),),
        "launches (layouts) 1 -> 2 (+100.0 %)",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_that_the_given_inputs_do_not_show(reader: Reader, name: str) -> None:
    pairs, reason = FAULTS[name]
    verdict = changed(reader, *pairs)
    assert verdict.word is Word.CHANGED
    assert reason in verdict.reason


def test_a_size_that_is_specialised_although_no_other_size_compiles_anew(reader: Reader) -> None:
    before = reading(reader, rows(reader, ("@triton.jit", '@triton.jit(do_not_specialize=["tokens"])')))
    after = reading(reader, rows(reader))
    assert before is not None
    assert after is not None
    reason = judge_exact(after, before.value).reason
    assert reason.endswith("other_inputs specialised sizes of rows_kernel (argument 0 dim 0) 0 -> 1")


def test_the_backward_pass_has_readings_of_its_own(reader: Reader) -> None:
    pairs = (("launched(grad.contiguous(), f)", "launched(grad.contiguous().clone(), f)"),)
    assert changed(reader, *pairs, grad=True).word is Word.PASS
    assert "copies (sizes) 0 -> 1" in changed(reader, *pairs, grad=True, direction="backward").reason


SAME = {
    "other tiles": (("BLOCK=16", "BLOCK=8"), ("tokens, 16", "tokens, 8")),
    "names": (("token", "place"), ("head", "column")),
    "one axis": (
        ("id(1)", "id(0) % heads"),
        ("tl.program_id(0) * BLOCK", "tl.program_id(0) // heads * BLOCK"),
        ("(triton.cdiv(tokens, 16), heads)", "(triton.cdiv(tokens, 16) * heads,)"),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_correct_changes_are_not_accused(reader: Reader, name: str) -> None:
    assert changed(reader, *SAME[name]).word in (Word.PASS, Word.BETTER)


def test_a_kernel_by_another_name_is_new_and_not_worse(reader: Reader) -> None:
    verdict = changed(reader, ("rows_kernel", "lines_kernel"))
    assert verdict.word is Word.NEW


def test_keys_of_tuners_over_sizes(reader: Reader) -> None:
    tuned = (
        "@triton.jit",
        '@triton.autotune([triton.Config({}), triton.Config({}, num_warps=8)], key=["row"])\n@triton.jit',
    )
    before, after = (
        reading(reader, rows(reader, tuned, *more)) for more in ((), (('key=["row"]', 'key=["row", "tokens"]'),))
    )  # fmt: skip
    assert before is not None
    assert after is not None
    assert "tunings of rows_kernel (argument 0 dim 0) 1 -> 3" in judge_exact(after, before.value).reason


def test_kinds_that_a_test_leaves_out_are_not_followed(reader: Reader) -> None:
    found = reading(reader, rows(reader, hard=Hard(without=["sizes"], reason="fixed")))
    assert found is not None
    assert isinstance(found.value, dict)
    assert not any("dim" in part or "sizes" in part for part in found.value)
    without = ["sizes", "layouts", "gradients", "dtypes"]
    assert reading(reader, rows(reader, hard=Hard(without=without, reason="fixed"))) is None
    assert reading(reader, rows(reader, hard=None)) is None


def test_large_inputs_are_cut_and_the_same_in_two_runs(reader: Reader) -> None:
    large = torch.zeros(600, 3000)
    call = Call(torch.relu, (large,), torch.relu)
    names = [(each.name, each.size) for each in other_calls(call)]
    assert names == [(each.name, each.size) for each in other_calls(call)]
    assert all(sum(tensor.numel() for tensor in each.make().args) <= 2**20 for each in other_calls(call))
    assert ("argument 0 dim 0", 257) in names


class Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, needed: bool) -> torch.Tensor:
        context.save_for_backward(x, weight)
        context.needed = needed
        return x @ weight.to(x.dtype).T

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> Any:
        x, weight = context.saved_tensors
        is_asked_for = context.needed or context.needs_input_grad[1]
        return grad @ weight, grad.T @ x if is_asked_for else None, None


def parts_of(reader: Reader, call: Call, direction: Pass = "forward") -> dict[str, Any]:
    found = reading(reader, call, direction)
    assert found is not None
    assert isinstance(found.value, dict)
    return found.value


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfguard.measure.binaries import call_binaries

    monkeypatch.setattr(call_binaries, "is_triton_loaded", lambda: False)


@pytest.mark.usefixtures("no_triton")
def test_operators_for_a_frozen_input_are_counted(reader: Reader) -> None:
    x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    counts = [
        parts_of(reader, Call(Product.apply, (x, weight, needed), Product.apply), "backward")
        for needed in (False, True)
    ]
    assert counts[1]["operators (frozen argument 1)"] == counts[0]["operators (frozen argument 1)"] + 1
    assert counts[1]["operators (frozen argument 0)"] == counts[0]["operators (frozen argument 0)"]


class Layer(torch.nn.Module):
    """`Product` of its own weight."""

    def __init__(self, needed: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, 4))
        self.needed = needed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Product.apply(x, self.weight, self.needed)
        return out


def test_operators_for_the_frozen_parameters_of_a_module_are_counted(reader: Reader) -> None:
    """The parameters are as before afterwards; a module that only its parameters train has no pass without them."""
    x = torch.randn(6, 4, requires_grad=True)
    layers = [Layer(needed) for needed in (False, True)]
    counts = [parts_of(reader, Call(layer, (x,), layer), "backward") for layer in layers]
    assert counts[1]["operators (frozen parameters)"] == counts[0]["operators (frozen parameters)"] + 1
    assert all(layer.weight.requires_grad and layer.weight.grad is None for layer in layers)
    alone = parts_of(reader, Call(layers[0], (x.detach(),), layers[0]), "backward")
    assert "operators (frozen parameters)" not in alone


def test_bytes_that_are_kept_for_a_frozen_input_are_counted(reader: Reader) -> None:
    """Parameters of a module exist without a call."""
    x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    for fn, kept in ((Product.apply, 6 * 4 + 5 * 4), (lambda x, weight, _: x @ weight.T, 6 * 4)):
        parts = parts_of(reader, Call(fn, (x, weight, False), fn))
        assert parts["saved bytes (frozen argument 0)"] == 4 * kept
    layer = Layer(needed=False)
    assert parts_of(reader, Call(layer, (x,), layer))["saved bytes (frozen parameters)"] == 4 * 6 * 4


def test_functions_that_are_transformed_run_on_other_layouts(reader: Reader) -> None:
    """`torch.func` refuses hooks of saved tensors."""
    x = torch.randn(6, 4, requires_grad=True)
    call = Call(lambda x: x * torch.func.grad(torch.sum)(x.detach()), (x,), lambda x: x * 1)
    assert parts_of(reader, call)["refused (layouts)"] == 0


def doubled_if(cond: Callable[[], bool]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * 2 + 0 if cond() else x * 2


def wide(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return x @ x.T


@pytest.mark.usefixtures("no_triton")
@pytest.mark.parametrize(
    ("mode", "more", "fewer"),
    [
        ("without grad", doubled_if(lambda: not torch.is_grad_enabled()), lambda x: x * 2),
        ("under autocast", lambda x: x @ x.T, wide),
    ],
)
def test_operators_in_a_mode_are_counted(reader: Reader, mode: str, more: Any, fewer: Any) -> None:
    x = torch.randn(6, 4, requires_grad=True)
    more_parts, fewer_parts = (parts_of(reader, Call(fn, (x,), fn)) for fn in (more, fewer))
    assert more_parts[f"operators ({mode})"] > fewer_parts[f"operators ({mode})"]
    assert f"operators ({mode})" not in parts_of(reader, Call(more, (x.detach(),), more))


def refuses(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if weight.dtype is not x.dtype:
        raise ValueError("one dtype")
    return x @ weight.T


@pytest.mark.usefixtures("no_triton")
@pytest.mark.parametrize(
    ("fn", "refused"),
    [(lambda x, weight: x @ weight.T, 1), (lambda x, weight: x @ weight.T.to(x.dtype), 0), (refuses, None)],
    ids=["by operators", "not", "by a decision"],
)
def test_dtypes_that_are_refused(reader: Reader, fn: Any, refused: int | None) -> None:
    def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight.to(x.dtype).T

    inputs = torch.randn(6, 4), torch.randn(5, 4)
    parts = parts_of(reader, Call(fn, inputs, reference))
    assert parts.get("refused (argument 0 as bfloat16)") == refused
    assert parts["refused (argument 0 and argument 1 as bfloat16)"] == 0
    parts = parts_of(reader, Call(fn, inputs, fn))  # what the reference refuses is outside of the domain
    assert not parts.get("refused (argument 0 as bfloat16)")


@pytest.mark.usefixtures("no_triton")
def test_calls_without_kernels_are_followed_where_they_run(reader: Reader) -> None:
    seen: list[int] = []

    def doubled(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return x.contiguous() * 2

    found = reading(reader, Call(doubled, (torch.ones(6, 4),), lambda x: x * 2))
    assert found is not None
    assert isinstance(found.value, dict)
    assert found.value["copies (transposed argument 0)"] == 1
    assert found.value["copies (sizes)"] == 0
    assert seen == []  # in a process of its own
