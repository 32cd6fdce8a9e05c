"""Weight gradients put off: a backward pass queues them, and they are computed when the schedule has time.

A pipeline schedule runs a backward for the input gradients that the previous stage waits for, and fills its gaps with
weight gradients. Origin: zero-bubble pipelines (Qi et al. 2023) and DualPipe's `WeightGradStore`, there class state;
here an object, so that two pipelines do not meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Deferred:
    run: Callable[[], None]
    holds: tuple[Tensor, ...]


class WeightGradStore:
    """Batches of deferred work, first in, first out.

        with store:              # backward passes within queue their weight gradients
            loss.backward()
        store.flush()            # what was queued becomes one batch
        ...
        store.pop()              # the oldest batch is computed and added to `.grad`

    An exception within the block leaves the store disabled and empty: a step that failed leaves nothing to a later one.
    """

    def __init__(self) -> None:
        self._enabled = False
        self._queued: list[_Deferred] = []
        self._batches: deque[list[_Deferred]] = deque()

    @property
    def enabled(self) -> bool:
        """Whether weight gradients are put off now; asked in the backward pass, on whatever thread that runs."""
        return self._enabled

    @property
    def bytes_held(self) -> int:
        """Memory that only waits for `pop`: each storage once, with all its bytes, however many share it."""
        deferred = [*self._queued, *(one for batch in self._batches for one in batch)]
        storages = [tensor.untyped_storage() for one in deferred for tensor in one.holds]
        return sum({(str(storage.device), storage.data_ptr()): storage.nbytes() for storage in storages}.values())

    def __len__(self) -> int:
        """Batches that wait for `pop`."""
        return len(self._batches)

    def __bool__(self) -> bool:
        """A store is a store, also when it is empty."""
        return True

    def __enter__(self) -> WeightGradStore:
        if self._enabled:
            raise RuntimeError("store: is enabled already; leave its block before you enter it again")
        self._enabled = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enabled = False
        if kind is not None:
            self.clear()

    def put(self, closure: Callable[[], None], holds: Sequence[Tensor] = ()) -> None:
        """Queue `closure` for the current batch; `holds` are the tensors that it keeps alive."""
        if not self._enabled:
            raise RuntimeError("store: is not enabled; put work into it within `with store:`")
        self._queued.append(_Deferred(closure, tuple(holds)))

    def flush(self) -> None:
        """Make what was queued one batch, also when that is nothing: each backward has its batch."""
        self._batches.append(self._queued)
        self._queued = []

    def pop(self) -> None:
        """Run the oldest batch, in the order in which it was queued."""
        if not self._batches:
            raise RuntimeError("store: holds no batch; call flush() after a backward pass and before pop()")
        batch = self._batches.popleft()
        with torch.no_grad():
            for position, one in enumerate(batch):
                batch[position] = _NOTHING  # its tensors are free as soon as it has run
                one.run()
                del one

    def clear(self) -> None:
        """Drop everything that waits."""
        self._queued = []
        self._batches.clear()


_NOTHING = _Deferred(lambda: None, ())


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """What autograd does at a leaf: assign where there is no `.grad` yet, else add, in the precision of `.grad`.

    A `.grad` that is wider than the parameter (`grad_dtype`) stays so: the sum is taken there. Rounding it first would
    lose what earlier chunks added.
    """
    if parameter.grad is None:
        wanted = getattr(parameter, "grad_dtype", None) or gradient.dtype
        parameter.grad = gradient.to(wanted)
    else:
        parameter.grad.add_(gradient)
