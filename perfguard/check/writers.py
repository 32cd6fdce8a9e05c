"""Names the operator or kernel that first writes into memory that a call may not write."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from perfguard._compat.torch_utils import DispatchMode
from perfguard._compat.triton_internals import INTERPRETED, launches_noted
from perfguard.check.numerics.trial import Gradients, Inputs, run_trial
from perfguard.model.call import Call
from perfguard.tensors.snapshot import Snapshot
from perfguard.tensors.user_frames import place_in_python

_BACKWARD = " in the backward pass"
_WRITTEN = re.compile(f"( was (?:modified|written)(?:{_BACKWARD})?)")  # Problems with inputs.


def with_writers(problems: list[str], call: Call, inputs: Inputs, upstream: Gradients) -> list[str]:
    """The problems of a call, with the first operator or kernel that wrote into each modified input."""
    if call.ranks.in_step or not any(_WRITTEN.search(problem) for problem in problems):
        return problems
    writers = _first_writers(call, inputs, upstream)

    def named(problem: str) -> str:
        head = "".join(_WRITTEN.split(problem)[:2])
        writer = writers.get(head.removesuffix(_BACKWARD))
        return problem if writer is None else f"{head}, first by {writer}{problem.removeprefix(head)}"

    return [*map(named, problems)]


def _first_writers(call: Call, inputs: Inputs, upstream: Gradients) -> dict[str, str]:
    """`argument 0 was modified` -> `aten.mul_.Tensor at kernel.py:9 in double`, for each unauthorised write of one more
    call. Writes of calls that refuse to be observed have no name."""
    named = [(f"the incoming gradient of output {at}", each) for at, each in enumerate(upstream) if each is not None]
    saved = [inputs.saved, Snapshot([(name, gradient, inputs.gives_gradients) for name, gradient in named])]
    watch = _Watch(lambda: [text for each in saved for text in each.changes()])
    with contextlib.suppress(Exception), launches_noted(watch.on_launch), _interpreted(watch), watch:
        run_trial(call.fn, inputs, upstream, seed=call.seed)
    return watch.writers


class _Watch(DispatchMode):
    """Looks for changes after every operator, and before whatever follows a launch.

    Args:
        changes: returns a text for each change so far.
    """

    def __init__(self, changes: Callable[[], list[str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writers: dict[str, str] = {}
        self._changes = changes
        self._last = ""
        self._is_passive = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._is_passive:
            return func(*args, **(kwargs or {}))
        with self.inside(str(func)):
            return func(*args, **(kwargs or {}))

    def on_launch(self, kernel: Any, grid: Any, args: Sequence[Any]) -> None:
        """Note a launch of a compiled kernel, before it runs."""
        self._look()
        self._begin(f"kernel {kernel.name}")

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """An operator, or a kernel in Triton's interpreter, whose own operators are not looked at."""
        self._look()
        self._begin(name)
        self._is_passive = True
        try:
            yield
        finally:
            self._is_passive = False
        self._look()

    def _begin(self, name: str) -> None:
        place = place_in_python()
        self._last = f"{name} at {place}" if place else name

    def _look(self) -> None:
        if not self._last:
            return
        self._is_passive = True
        try:
            for text in self._changes():
                self.writers.setdefault(text, self._last)
        finally:
            self._is_passive = False
        self._last = ""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # Otherwise torch.compile is skipped, and a compiled call runs other kernels.


@contextlib.contextmanager
def _interpreted(watch: _Watch) -> Iterator[None]:
    kind = INTERPRETED.loaded()
    if kind is None:
        yield
        return
    original = kind.run

    def launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        with watch.inside(f"kernel {kernel.fn.__name__}"):
            return original(kernel, *args, **kwargs)

    with mock.patch.object(kind, "run", launch):
        yield
