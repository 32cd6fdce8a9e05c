"""Compares fake implementations of custom operators, on which compilers rely, with the operators' results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from perfguard._compat import torch_utils
from perfguard._compat.torch_internals import fake_mode, has_own_fake, is_missing_fake, schema_of
from perfguard.check.hard_inputs.comparison import Outcome
from perfguard.check.hard_inputs.derivation import derived_tensor, with_tensors
from perfguard.check.hard_inputs.in_place import distinct_floats, fill
from perfguard.check.numerics.procedure import LeftOut, Run, differentiated
from perfguard.check.numerics.trial import Inputs
from perfguard.check.numerics.truth import Reference
from perfguard.interpreter.entry import interpreter_error
from perfguard.model.call import Call
from perfguard.model.errors import described, is_out_of_memory
from perfguard.tensors.autograd_graph import tree_tensors
from perfguard.tensors.layouts import strides_of, transposed
from perfguard.tensors.seeding import seed_all
from perfguard.tensors.snapshot import bits, storage_key

FAKES = "fake implementations of custom operators"


class _Seen(torch_utils.DispatchMode):
    """Runs operators unchanged, and the fake implementation of each custom one as well."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.problems: list[str] = []
        self._fakes = fake_mode()
        self._has_fake = functools.cache(has_own_fake)  # It reads torch's tables of all operators.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if not self._has_fake(func):
            return func(*args, **named)
        fake_args, fake_named = torch_utils.tree_map(self._faked, (args, named))
        kept = [(name, tensor, bits(tensor).clone()) for name, tensor in _read_only(func, args, named)]
        results = func(*args, **named)
        problem = self._problem(func, fake_args, fake_named, tree_tensors(results))
        for name, tensor, before in kept:
            if not bits(tensor).equal(before):
                problem = f"schema of {schema_of(func).name}: {name} is written, but not among mutates_args"
        if problem and problem not in self.problems:
            self.problems.append(problem)
        return results

    def _faked(self, value: Any) -> Any:
        return self._fakes.from_tensor(value) if isinstance(value, torch.Tensor) else value

    def _problem(self, func: Any, args: Any, kwargs: Any, results: list[torch.Tensor]) -> str:
        subject = f"fake implementation of {schema_of(func).name}"
        try:
            with self._fakes:
                fakes = tree_tensors(func(*args, **kwargs))
        except Exception as error:
            if is_out_of_memory(error) or is_missing_fake(error) or interpreter_error(error):
                return ""
            return f"{subject}: raises {described(error)}"
        if len(fakes) != len(results):
            return f"{subject}: {len(fakes)} tensors, the operator returns {len(results)}"
        for number, (fake, real) in enumerate(zip(fakes, results, strict=True)):
            if unlike := _unlike(fake, real):
                return f"{subject}, output {number}: {unlike}"
        return ""


def _read_only(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """The dense tensors that an operator's schema does not let it write: compiled code may use their old values."""
    of_writes: list[Any] = []
    others: list[tuple[str, torch.Tensor]] = []
    for at, each in enumerate(schema_of(func).arguments):
        given = tree_tensors(args[at] if at < len(args) else kwargs.get(each.name))
        if each.alias_info is not None and each.alias_info.is_write:
            of_writes += map(storage_key, given)
        others += [(each.name, tensor) for tensor in given if tensor.layout is torch.strided and tensor.numel()]
    return [(name, tensor) for name, tensor in others if storage_key(tensor) not in of_writes]


def _unlike(fake: torch.Tensor, real: torch.Tensor) -> str:
    """The difference of two tensors for which other code is compiled. Strides of dimensions of one element are none."""
    if fake.dtype != real.dtype:
        return f"dtype {str(fake.dtype)[6:]}, the operator's is {str(real.dtype)[6:]}"
    if fake.device.type != real.device.type:
        return f"is on {fake.device}, the operator's on {real.device}"
    if fake.shape != real.shape:
        return f"shape {[*fake.shape]}, the operator's is {[*real.shape]}"
    if real.numel() == 0 or real.layout is not torch.strided:
        return ""
    large = [dim for dim, size in enumerate(real.shape) if size > 1]
    if any(fake.stride(dim) != real.stride(dim) for dim in large):
        return f"strides ({strides_of(fake)}), the operator's are ({strides_of(real)})"
    return ""


def judge_fakes(call: Call) -> Outcome:
    """The fake implementation of each custom operator that a call reaches, beside the operator itself: on the call's
    tensors as they are, in another layout, and in bfloat16, if the reference takes that.

    Raises:
        LeftOut: the call raises.
    """
    for change, text in _CHANGES.items():
        seen = _Seen()
        called = with_tensors(call, change)
        try:
            if change is _in_bfloat16:
                Reference(called, Inputs(called)).run([])
            _run(called, seen)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if not text:
                raise LeftOut("the candidate raises") from error
        if seen.problems:
            return Outcome(problem=seen.problems[0] + text)
    return Outcome()


def _as_given(_: int, tensor: torch.Tensor) -> None:
    """No other tensor."""


def _transposed(_: int, tensor: torch.Tensor) -> torch.Tensor | None:
    if not tensor.is_floating_point() or tensor.ndim < 2 or tensor.numel() == 0:
        return None
    return transposed(tensor.detach()).requires_grad_(tensor.requires_grad)


def _in_bfloat16(_: int, tensor: torch.Tensor) -> torch.Tensor | None:
    return derived_tensor(tensor, "as bfloat16") if tensor.dtype in (torch.float32, torch.float16) else None


#: A fake that keeps strides is wrong if the operator copies, and one that names a dtype is wrong for other dtypes.
_CHANGES: dict[Callable[[int, torch.Tensor], torch.Tensor | None], str] = {
    _as_given: "",
    _transposed: ", its inputs transposed in memory",
    _in_bfloat16: ", its inputs in bfloat16",
}


def _run(call: Call, seen: _Seen) -> None:
    """Forward and backward, with incoming gradients of ones."""
    inputs = Inputs(call)
    saved = inputs.saved
    args, kwargs, leaves, written = inputs.bind()
    fill(distinct_floats(written))  # An earlier call may have written there what this one writes.
    leaves += [value for _, value in inputs.parameters]
    seed_all(call.seed)
    try:
        with seen, torch.set_grad_enabled(bool(leaves) or torch.is_grad_enabled()):
            outputs = tree_tensors(call.fn(*args, **kwargs))
            upstream = [torch.ones_like(each) if each.requires_grad else None for each in outputs]
            differentiated(outputs, Run(call.fn, args, kwargs, leaves, upstream, call.seed))
    finally:
        saved.restore()
