"""The memory-saving operators as data: how their inputs are built, and what they save for backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from kernels import operators
from kernels.fp8.inputs import row_major
from kernels.operators import reference
from perfguard import Tolerance

Arguments = tuple[Any, ...]
Layout = Callable[[Tensor], Tensor]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

ROWS, WIDTH = 19, 22  # a tail against every block
SIZES = (5, 0, 9, 3)  # rows of each group: one is empty, and two rows belong to none


@dataclass(frozen=True)
class Operator:
    """One operator; `arguments` draws its inputs on the CPU, floats in a layout of choice."""

    name: str
    draw: Callable[[int, int], Arguments]
    saved: Callable[[Arguments, Any], list[Tensor]]  # of the arguments and the result
    raw: str  # the operator that carries the autograd formula
    raw_arguments: Callable[[Arguments], Arguments]

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(operators, self.name)  # type: ignore[no-any-return]

    @property
    def reference(self) -> Callable[..., Any]:
        return getattr(reference, self.name)  # type: ignore[no-any-return]

    def arguments(
        self,
        device: torch.device | str,
        dtype: torch.dtype = torch.bfloat16,
        layout: Layout = row_major,
        rows: int = ROWS,
        width: int = WIDTH,
        grad: bool = True,
    ) -> Arguments:
        def place(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if not value.is_floating_point():
                return value.to(device)
            value = value.to(dtype).to(device)
            return (layout(value) if value.ndim > 1 else value).detach().requires_grad_(grad)

        return tuple(place(value) for value in self.draw(rows, width))

    @property
    def is_elementwise(self) -> bool:
        return self.name in ("silu_mul", "clamped_swiglu")


def group_ends(rows: int) -> tuple[Tensor, Tensor]:
    """offs (4,) int32 and group_ids (rows,) int64; what is past the last end has an id past the last group."""
    ends = torch.tensor(SIZES).cumsum(0).clamp(max=rows)
    return ends.int(), torch.searchsorted(ends, torch.arange(rows), right=True)


def _silu_mul(rows: int, width: int) -> Arguments:
    return torch.randn(rows, width), torch.randn(rows, width)


def _clamped_swiglu(rows: int, width: int) -> Arguments:
    return torch.randn(rows, width // 2 * 2) * 4, 1.702, 7.0  # beyond the limit now and then


def _rms_norm(rows: int, width: int) -> Arguments:
    return torch.randn(rows, width) * 3, torch.randn(width)


def _cross_entropy(rows: int, width: int) -> Arguments:
    target = torch.randint(max(width, 1), (rows,))
    target[1::5] = -100
    return torch.randn(rows, width) * 3, target


def _padded_index_gather(rows: int, width: int) -> Arguments:
    index = torch.randint(max(rows, 1), (2 * rows,))
    index[: rows // 2] = rows // 3  # one row is asked for often
    return torch.randn(rows, width), index, 16


def _scatter_for_grouped_gemm(rows: int, width: int) -> Arguments:
    expert = torch.randint(5, (rows,))
    expert[expert == 3] = 1  # an empty group
    return torch.randn(rows, width), expert, 5, 4, 8, False


def _indexed_bias_add(rows: int, width: int) -> Arguments:
    offs, ids = group_ends(rows)
    return torch.randn(rows, width), torch.randn(len(SIZES), width), ids, offs


def _scatter_raw(arguments: Arguments) -> Arguments:
    x = arguments[0]
    rev = torch.randperm(x.shape[0] + 3, device=x.device)[: x.shape[0]]
    source = torch.full((x.shape[0] + 5,), -1, device=x.device)
    source[rev] = torch.arange(x.shape[0], device=x.device)
    return x, rev, source, len(source), None


def _cross_entropy_raw(arguments: Arguments) -> Arguments:
    logits = arguments[0]
    losses, kept = torch.randn(logits.shape[0], device=logits.device), torch.tensor(3, device=logits.device)
    return logits, losses, kept, torch.randn_like(logits).detach()


def _rms_norm_raw(arguments: Arguments) -> Arguments:
    return (*arguments, 1e-5, 0.5, None)


def _itself(arguments: Arguments) -> Arguments:
    return (*arguments, None)  # the candidate


OPERATORS = (
    Operator("silu_mul", _silu_mul, lambda given, _: [given[0], given[1]], "silu_mul", _itself),
    Operator("clamped_swiglu", _clamped_swiglu, lambda given, _: [given[0]], "clamped_swiglu", _itself),
    # These save a tensor of their own: test_norms.py, test_cross_entropy.py.
    Operator("rms_norm", _rms_norm, lambda *_: [], "rms_norm", _rms_norm_raw),
    Operator("cross_entropy", _cross_entropy, lambda *_: [], "cross_entropy_reduce", _cross_entropy_raw),
    Operator("padded_index_gather", _padded_index_gather, lambda given, _: [given[1]], "padded_index_gather", _itself),
    Operator(
        "scatter_for_grouped_gemm",
        _scatter_for_grouped_gemm,
        lambda _, result: [result.rev],
        "scatter_for_grouped_gemm",
        _scatter_raw,
    ),
    Operator("indexed_bias_add", _indexed_bias_add, lambda given, _: [given[3]], "indexed_bias_add", _itself),
)


# For cross entropy; its gradient has tests of its own in test_cross_entropy.py, with bounds for the entry that counts.
TWO_ROUNDINGS = Tolerance(
    phi=2.0,
    reason="the saved gradient is rounded before the incoming one is applied, one entry is most of a row's gradient, "
    "and the loss is one number, for which eager's error may be nothing by luck",
)


def name(operator: Operator) -> str:
    """The pytest id."""
    return operator.name


def first_tensor(result: Any) -> Tensor:
    """What is differentiated of a result."""
    return result if isinstance(result, Tensor) else result[0]


def gradients(function: Callable[..., Any], arguments: Arguments, upstream: Tensor | None = None) -> list[Tensor]:
    """The first result and the gradients of all arguments that have one."""
    result = first_tensor(function(*arguments))
    leaves = [value for value in arguments if isinstance(value, Tensor) and value.requires_grad]
    if upstream is None:
        upstream = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result)
    return [result.detach(), *torch.autograd.grad(result, leaves, upstream)]


@contextmanager
def unchecked_indices() -> Iterator[None]:
    """Indices on the CPU are taken as those on a GPU: not looked at on the host."""
    modules = ("gather", "scatter", "cross_entropy_rows")
    patches = [mock.patch(f"kernels.operators.{module}.require_indices") for module in modules]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
