"""One run of a candidate or reference on the inputs of a call, with its results and side effects.

The user's tensors are used with their strides and storage offsets, but through detached aliases. Nothing accumulates
into them, and writes into their memory are found and undone.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from perfguard._compat import torch_utils
from perfguard.check.memory import GUARD, GUARD_BYTES, Canaries, described, within
from perfguard.check.numerics.hints import Jagged
from perfguard.check.numerics.oracle import widened
from perfguard.check.numerics.procedure import Gradients as Gradients  # noqa: PLC0414  # for others
from perfguard.check.numerics.procedure import Procedure, Run
from perfguard.check.numerics.sums import dtype_name, first_true, real_numbers
from perfguard.model.call import GRADIENTS, Call
from perfguard.model.errors import UsageError, shown
from perfguard.tensors.layouts import strides_of
from perfguard.tensors.seeding import seed_all
from perfguard.tensors.snapshot import Snapshot, bits, storage_key

_WRAP = 1 << 31  # offsets from here on do not fit a signed 32-bit integer
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass
class Trial:
    """Results of one run; every tensor is a detached copy."""

    names: list[str] = field(default_factory=list)  # the outputs' names
    outputs: list[torch.Tensor] = field(default_factory=list)
    strides: list[str] = field(default_factory=list)  # each dense output's, as returned: `48,1`
    others: list[Any] = field(default_factory=list)  # outputs other than tensors
    written: list[torch.Tensor] = field(default_factory=list)  # the writable arguments after the run
    gradients: list[torch.Tensor | None] = field(default_factory=list)  # in the order of `Inputs.leaf_names`
    differentiable: list[bool] = field(default_factory=list)  # whether each output is
    modified: list[str] = field(default_factory=list)  # texts on inputs written without authorisation

    def tensors(self) -> list[torch.Tensor | None]:
        """Outputs, written arguments and gradients, in this order."""
        return [*self.outputs, *self.written, *self.gradients]

    def unequal(self, other: Trial) -> list[int]:
        """Positions whose tensors differ in any bit, or where one is missing."""
        pairs = enumerate(zip(self.tensors(), other.tensors(), strict=True))
        return [position for position, (a, b) in pairs if not _same_bits(a, b)]

    def change_to(self, after: Trial, position: int, groups: Jagged | None) -> str:
        """`3 of 64 elements change, the first at [1, 2] from 0.5 to nan`."""
        old, new = self.tensors()[position], after.tensors()[position]
        if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
            return "presence, shape or dtype change"
        unequal = bits(old) != bits(new)
        index = first_true(unequal)
        where = groups.where(unequal.reshape(*old.shape, -1).any(-1)) if groups else ""
        first, then = (float(real_numbers(tensor)[tuple(index)]) for tensor in (old, new))
        return (
            f"{int(unequal.sum())} of {unequal.numel()} elements change{f', {where}' if where else ''}, "
            f"the first at {index} from {first:.6g} to {then:.6g}"
        )


def _same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


@dataclass(frozen=True)
class _Input:
    """One leaf of the flattened arguments.

    Attributes:
        name: `argument 0['w']`.
        written: whether the call may write it, and what is written is compared like an output.
        writable: whether the call may write it at all.
    """

    name: str
    value: Any
    written: bool
    writable: bool


class Inputs:
    """The inputs of a call: their names, their spec as text, and their tensors for each run."""

    def __init__(self, call: Call) -> None:
        flat, self._spec = torch_utils.tree_flatten_with_path((call.args, dict(call.kwargs)))
        self._inputs = []
        for path, leaf in flat:
            place = _key(path[1]) if len(path) > 1 and _key(path[0]) == 0 else None  # in args
            writable = place is not None and place in (*call.mutates, *call.clobbers)
            self._inputs.append(_Input("argument " + _path(path[1:]), leaf, place in call.mutates, writable))
        for each in self._of_tensors:
            if what := _not_dense(each.value):
                raise UsageError(f"{each.name}: {what}; pass dense tensors, and make others of them inside the call")
        self.procedure: Procedure = call.procedure or Procedure()
        self.gives_gradients = GRADIENTS in call.clobbers  # the call may overwrite incoming gradients
        self.module = call.fn if isinstance(call.fn, torch.nn.Module) else call.kept
        self._is_kept = self.module is call.kept
        self.parameters = [] if self.module is None else trained(self.module)
        self.leaf_names = [each.name for each in self._of_tensors if each.value.requires_grad]
        self.leaf_names += [f"parameter {name}" for name, _ in self.parameters]
        self.written_names = [f"{each.name} (written)" for each in self._of_tensors if each.written]
        self.written_names += self.procedure.state_names

    @property
    def _of_tensors(self) -> list[_Input]:
        return [each for each in self._inputs if isinstance(each.value, torch.Tensor)]

    @functools.cached_property
    def saved(self) -> Snapshot:
        """The inputs' bytes at the first access of this property."""
        return Snapshot([(each.name, each.value.detach(), each.writable) for each in self._of_tensors])

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors, in order."""
        return [each.value for each in self._of_tensors]

    @property
    def device(self) -> torch.device:
        """The device of the first tensor; the CPU without one."""
        return next((tensor.device for tensor in self.tensors), torch.device("cpu"))

    @property
    def names(self) -> list[str]:
        """Names of all inputs, in the order of the flattened arguments: `argument 0['w']`."""
        return [each.name for each in self._inputs]

    @property
    def storage_names(self) -> list[str]:
        """Name of the first input in each buffer of `surrounded`."""
        return [self.names[places[0]] for places in self._places_by_storage()]

    def _places_by_storage(self) -> list[list[int]]:
        """For each storage, the positions of its tensors in the flattened inputs."""
        places: dict[tuple[str, int], list[int]] = {}
        for place, each in enumerate(self._inputs):
            leaf = each.value
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel():
                places.setdefault(storage_key(leaf), []).append(place)
        return list(places.values())

    def bind(self, wide: torch.dtype | None = None) -> tuple[Any, Any, list[torch.Tensor], list[torch.Tensor]]:
        """Fresh aliases (with `wide`: copies): args, kwargs, tensors that require grad, tensors to be written."""
        leaves, differentiable, written = [], [], []
        for each in self._inputs:
            leaf = each.value
            if isinstance(leaf, torch.Tensor):
                leaf = leaf.detach() if wide is None else widened(leaf.detach(), wide)
                if each.value.requires_grad:
                    differentiable.append(leaf.requires_grad_())
                if each.written:
                    written.append(leaf)
            leaves.append(leaf)
        args, kwargs = torch_utils.tree_unflatten(leaves, self._spec)
        return args, kwargs, differentiable, written

    @contextlib.contextmanager
    def moved(self) -> Iterator[bool]:
        """Reverse the rows of every float input in place while inside; yields whether any were reversed.

        A legitimate cache notices both changes by the tensors' versions, which in-place writes increase.
        """
        saved = self.saved
        each = {(leaf.data_ptr(), leaf.shape, leaf.stride()): leaf for leaf in self.tensors if leaf.is_floating_point()}
        reversed_ = [leaf for leaf in each.values() if _reverse(leaf)]
        try:
            yield bool(reversed_)
        finally:
            for leaf in reversed_:
                _reverse(leaf)
            saved.restore()  # undoes other writes as well

    @contextlib.contextmanager
    def surrounded(self, canaries: Canaries, fills: Callable[[int], int]) -> Iterator[int]:
        """Replace the inputs by copies between guards while inside; yields the number of buffers, 0 if memory is short.

        Elements of a storage outside of all views hold the buffer's fill as well.

        Args:
            fills: number of a buffer -> the byte that fills it outside of the inputs.
        """
        own, storages = self._inputs, self._places_by_storage()
        inputs = list(own)
        for number, places in enumerate(storages):
            made = canaries.storage([own[place].value for place in places], own[places[0]].name, fills(number))
            if made is None:
                yield 0
                return
            for place in places:
                leaf = own[place].value
                copy = _copied_within(made, leaf.detach()).requires_grad_(leaf.requires_grad)
                inputs[place] = replace(own[place], value=copy)
        self._inputs = inputs
        try:
            yield len(storages)
        finally:
            self._inputs = own

    def unusual(self, index: Sequence[int]) -> list[str]:
        """Texts on inputs with an unusual memory layout, as possible causes of a wrong result at `index`."""
        words = []
        for each in self._of_tensors:
            name, leaf = each.name, each.value
            if leaf.numel() == 0 or leaf.is_contiguous():
                continue
            words.append(f"{name} is not contiguous: strides ({strides_of(leaf)})")
            first = -(-_WRAP // leaf.stride(0)) if leaf.stride(0) > 0 else 0
            if index and 0 < first < leaf.shape[0] and index[0] >= first:
                words.append(f"row {first} of {name} is the first that lies past 2^31 elements")
        return words

    def describe(self) -> str:
        """`bfloat16[64,48] grad; int32[4]; k=2`: dtypes, shapes, strides where not contiguous, other values.

        Identical in every process. Parameters of a module that is called are counted by dtype.
        """
        words = []
        for each in self._inputs:
            keyword = each.name.removeprefix("argument ")
            words.append(("" if keyword[0].isdigit() else f"{keyword}=") + _described(each.value))
        if self.module is not None and not self._is_kept:
            counts: Counter[str] = Counter()
            for parameter in self.module.parameters():
                counts[dtype_name(parameter)] += parameter.numel()
            words += [f"parameters {dtype}[{count}]" for dtype, count in sorted(counts.items())]
        return "; ".join(words)


def run_trial(
    fn: Callable[..., Any],
    inputs: Inputs,
    upstream: Gradients = (),
    *,
    seed: int,
    wide: torch.dtype | None = None,
    parameters: Sequence[torch.Tensor] | None = None,
    restore: bool = True,
) -> Trial:
    """Call `fn` once, forward, and backward if `upstream` has gradients for its outputs.

    Args:
        upstream: one incoming gradient (or None) for each output tensor; if empty, forward only.
        wide: dtype to run in; the inputs are then copies.
        parameters: replacements of the module's parameters in the backward pass; by default the parameters.
        restore: False while the inputs are `moved`: writes are then neither reported nor undone.
    """
    seed_all(seed)
    saved = inputs.saved if restore else None
    named = [(f"the incoming gradient of output {at}", each) for at, each in enumerate(upstream) if each is not None]
    incoming = Snapshot([(name, gradient, inputs.gives_gradients) for name, gradient in named])
    args, kwargs, leaves, written = inputs.bind(wide)
    leaves += [value for _, value in inputs.parameters] if parameters is None else parameters
    procedure, run = inputs.procedure, Run(fn, args, kwargs, leaves, upstream, seed, wide is not None)
    try:
        with torch.set_grad_enabled(bool(leaves) or torch.is_grad_enabled()):
            results = procedure.call(run)
        flat = torch_utils.tree_flatten_with_path(results)[0]
        tensors = [leaf for _, leaf in flat if isinstance(leaf, torch.Tensor)]
        trial = Trial(
            names=[f"output {_path(path)}".rstrip() for path, leaf in flat if isinstance(leaf, torch.Tensor)],
            outputs=[tensor.detach().clone() for tensor in tensors],
            strides=[strides_of(tensor) for tensor in tensors if tensor.layout is torch.strided],
            others=[leaf for _, leaf in flat if not isinstance(leaf, torch.Tensor)],
            differentiable=[tensor.requires_grad for tensor in tensors],
            modified=[*saved.freed(), *saved.changes()] if saved else [],
        )
        trial.gradients = procedure.gradients(tensors, run)
        if saved and named:
            after = [words for words in [*saved.freed(), *saved.changes()] if words not in trial.modified]
            trial.modified += [f"{words} in the backward pass" for words in [*after, *incoming.changes()]]
        trial.written = [tensor.detach().clone() for tensor in [*written, *procedure.state(fn)]]
        return trial
    finally:
        procedure.restore(fn)
        incoming.restore()
        if saved:
            saved.restore()


def trained(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that require grad, with their names."""
    return [(name, value) for name, value in module.named_parameters() if value.requires_grad]


def surrounded_gradient(gradient: torch.Tensor | None, name: str, canaries: Canaries) -> torch.Tensor | None:
    """A copy between guards, or the gradient itself if memory is short."""
    if gradient is None or gradient.numel() == 0:
        return gradient
    made = canaries.storage([gradient], name, GUARD)
    return gradient if made is None else _copied_within(made, gradient)


def upstream_gradients(outputs: Trial, seed: int) -> list[torch.Tensor | None]:
    """A random gradient for each differentiable output, seeded by its position, in the output's dtype."""
    gradients: list[torch.Tensor | None] = []
    for position, (tensor, needed) in enumerate(zip(outputs.outputs, outputs.differentiable, strict=True)):
        if not needed:
            gradients.append(None)
            continue
        generator = torch.Generator(tensor.device).manual_seed(seed + 1 + position)
        dtype = tensor.dtype if tensor.is_complex() else torch.float32
        noise = torch.randn(tensor.shape, dtype=dtype, device=tensor.device, generator=generator)
        gradients.append(noise.to(tensor.dtype))
    return gradients


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """A view without the repetitions of dimensions of stride 0."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0:
            tensor = tensor.narrow(dim, 0, min(1, tensor.shape[dim]))
    return tensor


def _reverse(tensor: torch.Tensor) -> bool:
    """Reverse a tensor in place along its first dimension of more than one element; returns whether it succeeded."""
    view = distinct(tensor.detach())
    dims = [dim for dim, size in enumerate(view.shape) if size > 1]
    if view.numel() == 0 or not dims:
        return False
    codes = bits(view)
    try:
        codes.copy_(codes.flip(dims[0]))
    except RuntimeError:  # elements that overlap in memory
        return False
    return True


def _copied_within(guarded: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` in a guarded buffer. Only its elements are copied, or the whole storage if they overlap."""
    place = within(guarded, tensor)
    try:
        bits(distinct(place)).copy_(bits(distinct(tensor)))
    except RuntimeError:  # elements that overlap in memory
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        guarded[GUARD_BYTES : GUARD_BYTES + whole.numel()].copy_(whole)
    return place


def _not_dense(tensor: torch.Tensor) -> str:
    """Why a tensor cannot be copied, poisoned and compared element by element; '' if it can."""
    if tensor.is_meta:
        return "has no data"
    if tensor.is_nested:
        return "is a nested tensor"
    layout = str(tensor.layout).removeprefix("torch.")
    return f"is {layout}" if layout.startswith("sparse") else ""


def _path(path: Sequence[Any]) -> str:
    """(0,) -> '0', ('mask',) -> 'mask', (0, 'w', 1) -> "0['w'][1]"."""
    return f"{_key(path[0])}{torch_utils.keystr(tuple(path[1:]))}" if path else ""


def _key(entry: Any) -> Any:
    """The position or key of one step of a path."""
    return getattr(entry, "idx", getattr(entry, "key", getattr(entry, "name", entry)))


def _described(value: Any) -> str:
    """A tensor's spec; else repr without addresses, functions and classes by name."""
    if not isinstance(value, torch.Tensor):
        name = getattr(value, "__qualname__", None)
        return name if isinstance(name, str) and name else _ADDRESS.sub("", shown(value))
    text = described(value)
    if not value.is_contiguous():
        text += f" strides ({strides_of(value)})"
    return text + (" grad" if value.requires_grad else "")
