"""Expert weights of any module, multiplied by these kernels: `torch._grouped_mm` on a converted weight is ours.

    convert(model, lambda name, parameter: "experts" in name, precision="fp8")

The weight stays a parameter of its module, with its name, shape and dtype, in FSDP2 too (call `convert` first).
Every operation but the grouped matmul sees the plain tensor.

Shape suffixes: M rows, K and N widths, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree

from kernels import fp8, grouped

Precision = Literal["bf16", "fp8"]

_GROUPED = {each for each in (getattr(torch, "_grouped_mm", None), getattr(nn.functional, "grouped_mm", None)) if each}
_OPERANDS = ("a", "b", "offs", "bias", "out_dtype")
_NAMES = {"self": "a", "mat_a": "a", "mat2": "b", "mat_b": "b"}  # of both functions
_aten = torch.ops.aten
# What returns the weight itself in another form, so that a product with the result is one with the weight.
_KEPT = {
    _aten.detach.default,
    _aten.alias.default,
    _aten.clone.default,
    _aten.transpose.int,
    _aten.permute.default,
    _aten.view.default,
    _aten.as_strided.default,
    _aten.slice.Tensor,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
    _aten.unsafe_split.Tensor,
    _aten.unsafe_split_with_sizes.default,
    _aten.empty_like.default,
    _aten.new_zeros.default,
    _aten.copy_.default,
    _aten._to_copy.default,
}


class ExpertWeight(torch.Tensor):
    """A weight (E, K, N), or a view of one, for which the grouped matmul is this repository's."""

    plain: Tensor
    precision: Precision

    @staticmethod
    def __new__(cls, plain: Tensor, precision: Precision) -> ExpertWeight:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            plain.size(),
            strides=plain.stride(),
            storage_offset=plain.storage_offset(),
            dtype=plain.dtype,
            layout=plain.layout,
            device=plain.device,
            requires_grad=plain.requires_grad,
        )

    def __init__(self, plain: Tensor, precision: Precision) -> None:
        self.plain = plain
        self.precision = precision

    def __repr__(self) -> str:  # type: ignore[override]
        return f"ExpertWeight({self.plain}, {self.precision!r})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _GROUPED:
            named = dict(zip(_OPERANDS, args, strict=False)) | {_NAMES.get(name, name): kwargs[name] for name in kwargs}
            if isinstance(named.get("b"), ExpertWeight) and not isinstance(named.get("a"), ExpertWeight):
                return _multiply(**named)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        plain_args, plain_kwargs = tree.tree_map_only(ExpertWeight, lambda each: each.plain, (args, kwargs or {}))
        found = func(*plain_args, **plain_kwargs)
        if func is _aten.copy_.default:
            return args[0]
        if func not in _KEPT:
            return found
        weights = (each for each in tree.tree_leaves((args, kwargs)) if isinstance(each, ExpertWeight))
        precision = next(weights).precision
        return tree.tree_map_only(Tensor, lambda each: cls(each, precision), found)

    # torch.compile: the tensors inside, and what else makes the same object of them again.

    def __tensor_flatten__(self) -> tuple[list[str], Precision]:
        return ["plain"], self.precision

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], precision: Precision, size: Any, stride: Any) -> ExpertWeight:
        return ExpertWeight(inner["plain"], precision)

    # FSDP2: what is gathered of a shard, and what the module then holds.

    def fsdp_pre_all_gather(
        self, mesh: Any, size: Any, stride: Any, module: nn.Module, policy: Any
    ) -> tuple[tuple[Tensor], None]:
        return (self.plain if policy.param_dtype is None else self.plain.to(policy.param_dtype),), None

    def fsdp_post_all_gather(
        self, gathered: tuple[Tensor], metadata: None, dtype: torch.dtype, *, out: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor]] | None:
        if out is not None:
            return None  # its memory was gathered into
        return ExpertWeight(gathered[0], self.precision), gathered


class _Plain(torch.autograd.Function):
    """The tensor in a weight; its gradient is the weight's."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        assert isinstance(weight, ExpertWeight)
        return weight.plain

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def _multiply(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """a (M, K) by a converted b (E, K, N) -> (M, N) in a's dtype, as `torch._grouped_mm`."""
    if bias is not None:
        raise ValueError("bias: is not supported by torch._grouped_mm either; add it to the result")
    if offs is None:
        raise ValueError("offs: is None; give the end of each group of rows, or take torch.bmm for equal groups")
    if out_dtype not in (None, a.dtype):
        raise ValueError(f"out_dtype: is {out_dtype}; may be {a.dtype}, that of the rows, or None")
    assert isinstance(b, ExpertWeight)
    plain_EKN = _Plain.apply(b)
    if b.precision == "fp8":
        return fp8.grouped_mm(a, plain_EKN, offs).to(a.dtype)
    return grouped.grouped_mm(a, plain_EKN, offs)


def convert(
    module: nn.Module, chosen: Callable[[str, nn.Parameter], bool], *, precision: Precision = "fp8"
) -> list[str]:
    """Replace the chosen parameters of `module`, and of the modules in it, by converted ones; before `fully_shard`.

    Args:
        chosen: called with each parameter's qualified name and itself.
        precision: "fp8" quantises both operands anew in every product, forward and backward; "bf16" does not.

    Returns:
        the names of the converted parameters.

    Raises:
        ValueError: none was chosen, or a chosen one has no three dimensions (E, K, N).
    """
    names = []
    for prefix, owner in module.named_modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            full = f"{prefix}.{name}".lstrip(".")
            if not chosen(full, parameter) or isinstance(parameter, ExpertWeight):
                continue
            if parameter.ndim != 3:
                raise ValueError(f"{full}: has shape {tuple(parameter.shape)}; an expert weight has three dimensions")
            wrapped = ExpertWeight(parameter.detach(), precision)
            setattr(owner, name, nn.Parameter(wrapped, requires_grad=parameter.requires_grad))
            names.append(full)
    if not names:
        raise ValueError("convert: no parameter was chosen; print(name) in `chosen` to see the names")
    return names
