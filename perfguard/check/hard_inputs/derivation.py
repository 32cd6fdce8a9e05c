"""Derived inputs described by texts from which they can be made again: `transposed, row 3 zero`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from perfguard._compat import torch_utils
from perfguard.check.hard_inputs import mark_of, marked
from perfguard.check.hard_inputs.integers import RESIZED, limit_after, with_integers
from perfguard.check.hard_inputs.scalars import OPTIONS, keywords_of, with_scalars
from perfguard.check.hard_inputs.values import LARGE, LARGEST, OUTLIER, resized, row_count, with_values
from perfguard.check.memory import free_bytes
from perfguard.model.call import Call
from perfguard.model.errors import UsageError
from perfguard.tensors.layouts import expanded, transposed

_WRAP = 2**31  # The first offset beyond a signed 32-bit integer.
_SHARE = 0.25  # The most of the free memory for one tensor.
OUTER = "outer dimensions transposed"
_PAD = 3  # Elements between rows. It is odd, so that rows are aligned to one element only.


def _sliced(tensor: torch.Tensor) -> torch.Tensor:
    """A slice of a larger buffer, from its second element on. The gaps between rows are NaN, -1, or 1 if unsigned."""
    *outer, last = tensor.shape
    buffer = tensor.new_empty((*outer, last + _PAD))
    if tensor.is_floating_point() and tensor.itemsize == 1:
        buffer.view(torch.uint8).fill_(0xFF)
    elif tensor.is_floating_point():
        buffer.fill_(float("nan"))
    else:
        buffer.fill_(1 if tensor.dtype is torch.bool or not tensor.dtype.is_signed else -1)
    view = buffer.narrow(-1, 1, last)
    return view.copy_(tensor)


def _odd_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Odd strides for dimensions of size 1, whose strides have no meaning."""
    made = tensor.contiguous()
    strides = [7 if size == 1 else stride for size, stride in zip(made.shape, made.stride(), strict=True)]
    return made.as_strided(made.shape, strides)


def _far_apart(tensor: torch.Tensor) -> torch.Tensor:
    """The last row past 2^31 elements. As much memory lies before the first row, so wrapped offsets stay inside."""
    rows = tensor.contiguous().flatten(1)
    apart = -(-_WRAP // (16 * (len(rows) - 1))) * 16  # a multiple of 16, as kernels require
    buffer = tensor.new_empty(_WRAP + apart * (len(rows) - 1) + rows.shape[1])
    strides = (apart, *rows[0].view(tensor.shape[1:]).stride())
    return buffer.as_strided(tensor.shape, strides, _WRAP).copy_(tensor)


def _outer_transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The first of three or more dimensions exchanged with the next to last: heads and tokens, of which either is
    first. Rows stay contiguous."""
    return tensor.transpose(0, -2).contiguous().transpose(0, -2)


def _conjugate_view(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, whose memory holds its conjugate."""
    return tensor.conj_physical().conj()


#: Text of a derivation -> its layout.
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": transposed,
    OUTER: _outer_transposed,
    "sliced": _sliced,
    "expanded": expanded,
    "odd strides": _odd_strides,
    "conjugate view": _conjugate_view,
    "far apart": _far_apart,
}


def layouts_of(tensor: torch.Tensor, written: bool) -> list[str]:
    """Names of the layouts that make a difference for a tensor.

    Args:
        written: whether the call may write the tensor, whose elements then must not share memory.
    """
    if tensor.layout is not torch.strided or tensor.ndim == 0 or tensor.numel() < 2:
        return []
    names = ["transposed", "sliced"]
    if not written and tensor.ndim > 1 and tensor.is_floating_point():
        names.append("expanded")
    if tensor.ndim > 2 and tensor.shape[0] > 1 and tensor.shape[-2] > 1:
        names.insert(1, OUTER)
    names += ["odd strides"] * (1 in tensor.shape) + ["conjugate view"] * tensor.is_complex()
    return names + ["far apart"] * _has_room_far_apart(tensor)


def layouts_by_place(call: Call, leaves: Sequence[Any]) -> dict[int, list[str]]:
    """Place -> names of layouts. Inputs that share memory with others are left out."""
    tensors = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    storages = [leaf.untyped_storage().data_ptr() for leaf in tensors.values() if leaf.layout is torch.strided]
    written = bool(call.mutates or call.clobbers)
    found = {}
    for place, leaf in tensors.items():
        if leaf.layout is torch.strided and storages.count(leaf.untyped_storage().data_ptr()) == 1:
            names = layouts_of(leaf, written)
            if names:
                found[place] = names
    return found


def _has_room_far_apart(tensor: torch.Tensor) -> bool:
    """Whether rows can be far apart. Only on a GPU, since CPU operators do not compute addresses in 32 bits."""
    if tensor.device.type == "cpu" or tensor.ndim < 2 or not 1 < len(tensor) < _WRAP // tensor[0].numel():
        return False
    return 2 * _WRAP * tensor.itemsize < _SHARE * free_bytes(tensor.device)


# -- texts -------------------------------------------------------------------------------------------------------------

_LED = re.compile(r"leading dim grown to (\d+)")  # One more dimension, along which rows are in turn reversed.
_ROW = re.compile(r"row (\d+) (.+)")
_VERBS = ("cut", "grown")  # Changes of a size.
INCOMING = -1  # The place of incoming gradients among those of inputs.
STRICT = -2  # The place of the way in which interpreted kernels run.
CALLED = -3  # The place of the way in which the call is made (called.py).
TUNED = -5  # The place of options of the candidate alone.
TWICE = "backward again on the same graph"
UNMENTIONED = "unmentioned"
NOBODY = "every third -1"
ENDLESS = "-inf at first"  # of logarithms of what is empty
_OF_VALUES = ("values", "thresholds")
FROZEN = "frozen"  # The input needs no gradient, although the given one does.
TRAINED = "trained"  # The input needs a gradient, although the given one does not.
_ALONE = re.compile(r"of output (\d+) alone")
FLOATS = {f"as {name}": getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float64")}


@dataclass(frozen=True)
class Part:
    """Steps that belong together.

    Attributes:
        kind: its name in `Hard(without=…)`.
        steps: place among all leaves of the call -> steps of that input as text; `INCOMING` -> of incoming gradients;
            `STRICT` -> how interpreted kernels run; `CALLED` -> how the call is made; `OPTIONS` -> keyword arguments
            that the call does not give; `TUNED` -> those that the candidate alone takes.
    """

    kind: str
    steps: Mapping[int, str]


@dataclass(frozen=True)
class Derivation:
    """Parts in the order in which they are applied."""

    parts: tuple[Part, ...]

    @property
    def scales(self) -> bool:
        """Whether one input is made larger than float16 can hold, and nothing else is changed."""
        return len(self.parts) == 1 and list(self.parts[0].steps.values()) == [f"times 2^{LARGEST}"]

    @property
    def forward_only(self) -> bool:
        """Whether to skip gradients: correct formulas of one gradient differ in their results for infinity and NaN,
        which also arise from products of huge inputs."""
        if any(part.kind == "non-finite" or ENDLESS in part.steps.values() for part in self.parts):
            return True
        return self._scaled_by(LARGEST) and not self.scales

    @property
    def saturates(self) -> bool:
        """Whether gradients are residues of large terms that cancel, for example where a softmax has reached 1. The
        terms cancel exactly in eager, but only up to their roundings in other kernels."""
        return self._scaled_by(LARGE, LARGEST, OUTLIER) or any("shifted by" in text for text in self._texts)

    @property
    def only_output(self) -> int | None:
        """The output that alone has an incoming gradient, as that of a loss of one of several results."""
        found = _ALONE.fullmatch(self.text(INCOMING))
        return int(found[1]) if found else None

    @property
    def trains(self) -> bool:
        """Whether inputs need gradients that the given ones do not."""
        return any(text == TRAINED for part in self.parts for text in part.steps.values())

    @property
    def unmentioned(self) -> bool:
        """Whether neither the test nor its marks show that the call takes such inputs. The reference does, which may
        take more than is meant, so that only a base that is right on them makes a fault of what is wrong."""
        return any(part.kind == UNMENTIONED for part in self.parts)

    @property
    def alike(self) -> list[Derivation]:
        """Derivations with the same results if an id of -1 stands for none: one that counts from the end does not."""
        if not any(NOBODY in part.steps.values() for part in self.parts):
            return []
        steps = [{at: text.replace("-1", "-2") for at, text in part.steps.items()} for part in self.parts]
        return [Derivation(tuple(Part(UNMENTIONED, each) for each in steps))]

    @property
    def cancels(self) -> bool:
        """Whether rows are one number and its negative, so that all elements of a result share what is left where terms
        cancel."""
        return any(each in text for each in ("alternating", "equal") for text in self._texts)

    @property
    def incoming(self) -> float:
        """The factor by which incoming gradients are enlarged."""
        found = re.search(r"times 2\^(\d+)", self.text(INCOMING))
        return 2.0 ** int(found[1]) if found else 1.0

    def _scaled_by(self, *powers: int) -> bool:
        return any(f"2^{power}" in text for power in powers for text in self._texts)

    @property
    def _texts(self) -> list[str]:
        return [text for part in self.parts if part.kind in _OF_VALUES for text in part.steps.values()]

    @property
    def is_called(self) -> bool:
        """Whether the call is made in another way, or on the given values in other dtypes."""
        return any(part.kind == "dtypes" or CALLED in part.steps for part in self.parts)

    @property
    def resizes(self) -> bool:
        return any(f" {verb} to " in text for part in self.parts for text in part.steps.values() for verb in _VERBS)

    @property
    def scalars(self) -> list[Part]:
        """Its parts that change numbers and options."""
        return [part for part in self.parts if part.kind == "scalars" or OPTIONS in part.steps]

    @property
    def far_apart(self) -> bool:
        return any("far apart" in text for part in self.parts for text in part.steps.values())

    @property
    def may_be_refused(self) -> bool:
        """Whether a candidate may refuse the input by raising. It must accept finite values and marked integers."""
        if self.text(TUNED) or any(part.kind == "unmarked integers" for part in self.parts):
            return True
        dtypes = any(text.startswith("as int") for part in self.parts for text in part.steps.values())
        if dtypes or self.resizes or self.trains or self.unmentioned or self.text(CALLED) == TWICE:
            return True
        return any(part.kind in ("layouts", "non-finite", "scalars", "dtypes") for part in self.parts)

    def text(self, place: int) -> str:
        """The steps of one input as text; empty if it is as given."""
        return ", ".join(part.steps[place] for part in self.parts if place in part.steps)

    def words(self, names: Sequence[str]) -> str:
        """`argument 0 (transposed, row 3 zero) and argument 1 (sliced)`."""
        texts = [(name, self.text(place)) for place, name in enumerate(names)]
        texts += [("incoming gradients", self.text(INCOMING)), ("kernels", self.text(STRICT))]
        texts.append(("options", ", ".join(filter(None, [self.text(OPTIONS), self.text(TUNED)]))))
        words = [f"{name} ({text})" for name, text in texts if text]
        return " and ".join(filter(None, [*words, self.text(CALLED)]))


@dataclass(frozen=True)
class FirstAccepted:
    """Derivations, of which the first is judged that reference and candidate accept.

    Attributes:
        joint: a derivation whose results from the reference must differ. If they are equal, the reference does not use
            the elements that only `joint` cuts.
    """

    kind: str
    items: tuple[Derivation, ...]
    joint: Derivation


def derived_tensor(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """A tensor derived from another by a text: values, layouts and sizes, applied in order.

    Raises:
        UsageError: an unknown step.
    """
    made = tensor.detach()
    for step in filter(None, text.split(", ")):
        made = _step(made, step)
    if made is tensor or made.data_ptr() == tensor.data_ptr():
        made = made.clone()
    made = made.detach().requires_grad_(text == TRAINED or (tensor.requires_grad and FROZEN not in text.split(", ")))
    mark = mark_of(tensor)
    if mark is not None:
        marked(made, replace(mark, limit=limit_after(text, mark.limit)))
    return made


def _step(tensor: torch.Tensor, step: str) -> torch.Tensor:
    if step in (FROZEN, TRAINED):
        return tensor
    if step in LAYOUTS:
        return LAYOUTS[step](tensor)
    if step in FLOATS and tensor.is_floating_point():
        return tensor.to(FLOATS[step])
    integers = with_integers(tensor, step)
    if integers is not None:
        return integers
    if leading := _LED.fullmatch(step):
        return torch.stack([tensor.flip(0) if at % 2 else tensor for at in range(int(leading[1]))])
    size = RESIZED.fullmatch(step)
    try:
        if size:
            return resized(tensor, *map(int, size.groups()))
        row = _ROW.fullmatch(step)
        return with_values(tensor, row[2], int(row[1])) if row else with_values(tensor, step)
    except (ValueError, IndexError, KeyError, RuntimeError) as error:
        raise UsageError(
            f"perfguard.derived(…, {step!r}): {error}; write the steps as a failure prints them"
        ) from error


def derived_call(call: Call, derivation: Derivation) -> Call:
    """The call on derived inputs."""

    def change(place: int, tensor: torch.Tensor) -> torch.Tensor | None:
        text = derivation.text(place)
        return derived_tensor(tensor, text) if text else None

    scalars = {place: text for part in derivation.scalars for place, text in part.steps.items()}
    options = ", ".join(part.steps[OPTIONS] for part in derivation.scalars if OPTIONS in part.steps)
    made = with_scalars(with_tensors(call, change), scalars | ({OPTIONS: options} if options else {}))
    tuned = derivation.text(TUNED)
    return replace(made, fn=partial(made.fn, **keywords_of(tuned))) if tuned else made


def followers_of(part: Part, call: Call) -> Derivation:
    """The changes of tensors that follow an option, as ids do that it calls none; empty for other parts."""
    leaves = leaves_of(call) if part.kind == "scalars" else []
    steps = {
        at: text for at, text in part.steps.items() if 0 <= at < len(leaves) and isinstance(leaves[at], torch.Tensor)
    }
    return Derivation((Part(part.kind, steps),) if 0 < len(steps) < len(part.steps) else ())


def with_tensors(call: Call, change: Callable[[int, torch.Tensor], torch.Tensor | None]) -> Call:
    """The call on other tensors; one tensor in two places remains one tensor.

    Args:
        change: place among all leaves and the tensor there -> the tensor in its place; None leaves it.
    """
    leaves, spec = torch_utils.tree_flatten((call.args, dict(call.kwargs)))
    made: dict[int, torch.Tensor] = {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and id(leaf) not in made:
            changed = change(place, leaf)
            if changed is not None:
                made[id(leaf)] = changed
    args, kwargs = torch_utils.tree_unflatten([made.get(id(leaf), leaf) for leaf in leaves], spec)
    groups = made.get(id(call.groups), call.groups)
    return replace(call, args=args, kwargs=kwargs, walk=(), rival=None, groups=groups, others=())


def leaves_of(call: Call) -> list[Any]:
    """All inputs, in the order of their places."""
    return torch_utils.tree_leaves((call.args, dict(call.kwargs)))


def mixed(leaves: Sequence[Any], floats: Sequence[int], kinds: Sequence[str], kind: str) -> list[Part]:
    """One kind in each of at most half of the rows. The other rows keep their values."""
    parts = []
    for turn, place in enumerate(floats):
        rows = row_count(leaves[place])
        if leaves[place].ndim == 1 or rows == 1:
            if turn == 0:
                parts.append(Part(kind, {place: kinds[2 % len(kinds)]}))
            continue
        if turn and kind == "non-finite":
            continue  # One such tensor already affects all results of a product.
        for at, each in enumerate(kinds[: max(1, min(len(kinds), rows // 2))]):
            parts.append(Part(kind, {place: f"row {_spread(at, rows)} {each}"}))
    return parts


def _spread(at: int, rows: int) -> int:
    """The first row, the last, the second, the last but one …"""
    return at // 2 if at % 2 == 0 else rows - 1 - at // 2
