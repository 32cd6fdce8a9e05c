"""The autotuners that a call reaches on a present device, and their choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from perfguard._compat.triton_internals import AUTOTUNER, knows_triton


@dataclass(frozen=True)
class Tuned:
    """One tuner's choice.

    Attributes:
        chosen: the configuration, in Triton's notation.
        spread: relative slowdown of the second best at the time of choosing; None if fewer than two were timed.
        seconds: duration of the last choice; None if there was none in this process.
    """

    kernel: str
    chosen: str
    spread: float | None
    seconds: float | None


def tuners_of(run: Callable[[], object]) -> list[Tuned]:
    """The tuners that `run` reaches, in this order, each once. They must have been called before."""
    with tuners_met() as tuners:
        run()
    return [_choice(tuner) for tuner in tuners]


@contextmanager
def tuners_met() -> Iterator[list[Any]]:
    """List the autotuners with several configurations as they are called while inside, each once."""
    met: list[Any] = []
    if not knows_triton():
        yield met
        return
    autotuner = AUTOTUNER.get()
    launch = autotuner.run

    def noted(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        result = launch(tuner, *args, **kwargs)
        if len(tuner.configs) > 1 and not any(tuner is each for each in met):
            met.append(tuner)
        return result

    with mock.patch.object(autotuner, "run", noted):
        yield met


def _choice(tuner: Any) -> Tuned:
    timings = getattr(tuner, "configs_timings", None) or {}
    # Triton stores quantiles of each configuration, the median first, or a single number from another benchmark.
    medians = sorted(float(each[0] if isinstance(each, list | tuple) else each) for each in timings.values())
    finite = [median for median in medians if 0 < median < float("inf")]
    return Tuned(
        kernel=tuner.base_fn.__name__,
        chosen=str(tuner.best_config),
        spread=round(finite[1] / finite[0] - 1, 3) if len(finite) > 1 else None,
        seconds=getattr(tuner, "bench_time", None),
    )


def pinned(number: int) -> AbstractContextManager[Any]:
    """Run every autotuned kernel in its configuration of this number while inside, or in its last if it has fewer."""

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        configuration = tuner.configs[min(number, len(tuner.configs) - 1)]
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        whole = {**tuner.nargs, **kwargs, **configuration.all_kwargs()}
        if configuration.pre_hook is not None:
            configuration.pre_hook(whole)
        tuner.best_config = configuration
        return tuner.fn.run(*args, **kwargs, **configuration.all_kwargs())

    return mock.patch.object(AUTOTUNER.get(), "run", run)
