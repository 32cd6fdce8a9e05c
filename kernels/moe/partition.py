"""How many layers each pipeline stage takes: by number alone, or by the memory that layers hold.

`layer_partition` follows DualPipeV's order of stages (deepseek-ai/DualPipe), whose first and last stage share a rank
and hold embedding and head besides: what does not divide goes to the inner stages first.

`layer_partition_by_memory` is the variant that takes memory as an input; `profile_saved` measures what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

Held = Callable[[int, int, int], int]  # stage, its first layer, the layer behind its last -> bytes

_NEVER = inf


def layer_partition(num_layers: int, num_stages: int) -> list[int]:
    """Layers of each stage: as even as can be, what is left over to inner stages from left to right, then to the
    first, then to the last. Knows nothing of memory.

    Raises ValueError unless num_layers >= num_stages >= 1.
    """
    _check(num_layers, num_stages)
    share, rest = divmod(num_layers, num_stages)
    sizes = [share] * num_stages
    order = [*range(1, num_stages - 1), 0, num_stages - 1]
    for stage in order[:rest]:
        sizes[stage] += 1
    return sizes


@dataclass(frozen=True)
class LayerMemory:
    """What one layer holds: weights once, activations once for each micro-batch in flight."""

    weight_bytes: int
    activation_bytes: int


def layer_partition_by_memory(
    layers: Sequence[LayerMemory],
    num_stages: int,
    *,
    in_flight: Sequence[int] | None = None,
    edge_bytes: tuple[int, int] = (0, 0),
    limit_bytes: int | None = None,
) -> list[int]:
    """Layers of each stage, in order and at least one each, so that the fullest stage holds as little as possible.

    Among the partitions that reach this minimum it is the one that differs least, in sum, from
    `layer_partition`; then the one with the smallest first and last stage. So equal layers give `layer_partition`'s
    answer.

    Args:
        layers: in the order of the model.
        in_flight: micro-batches whose activations a stage keeps at its worst moment, one number a stage; default 1.
            It is the schedule that knows it.
        edge_bytes: what the first and the last stage hold besides: embedding, final norm and head.
        limit_bytes: the most that a stage may hold; more is an error.

    Raises ValueError unless len(layers) >= num_stages >= 1, or where the limit cannot be kept.
    """
    _check(len(layers), num_stages)
    flight = [1] * num_stages if in_flight is None else list(in_flight)
    if len(flight) != num_stages or min(flight) < 0:
        raise ValueError(f"in_flight: is {flight}; give one count of micro-batches for each of {num_stages} stages")
    weights = [0, *accumulate(layer.weight_bytes for layer in layers)]
    activations = [0, *accumulate(layer.activation_bytes for layer in layers)]
    extra = [0] * num_stages
    extra[0] += edge_bytes[0]
    extra[-1] += edge_bytes[1]

    def held(stage: int, start: int, end: int) -> int:
        kept = flight[stage] * (activations[end] - activations[start])
        return extra[stage] + weights[end] - weights[start] + kept

    fullest = _least_fullest(len(layers), num_stages, held)
    if limit_bytes is not None and fullest > limit_bytes:
        raise ValueError(
            f"limit_bytes: is {limit_bytes}, the best partition into {num_stages} stages holds {fullest} in its "
            "fullest; take more stages, fewer micro-batches in flight, or recompute activations"
        )
    return _closest(layer_partition(len(layers), num_stages), fullest, held)


def _check(num_layers: int, num_stages: int) -> None:
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"num_stages: is {num_stages} for {num_layers} layers; give 1 to {num_layers}, a layer for each at least"
        )


def _least_fullest(num_layers: int, num_stages: int, held: Held) -> int:
    """The least that the fullest stage can hold: best[n] is it for the stages so far and the first n layers."""
    best: list[float] = [held(0, 0, end) if end else _NEVER for end in range(num_layers + 1)]
    for stage in range(1, num_stages):
        best = [
            min((max(best[start], held(stage, start, end)) for start in range(stage, end)), default=_NEVER)
            for end in range(num_layers + 1)
        ]
    return int(best[num_layers])


def _closest(even: list[int], fullest: int, held: Held) -> list[int]:
    """Of the partitions without a stage above `fullest`, the one closest to `even`; then with the smallest edges."""
    num_layers, last = sum(even), len(even) - 1
    best: list[tuple[float, int, list[int]]] = [(0, 0, [])] + [(_NEVER, 0, [])] * num_layers
    for stage, share in enumerate(even):
        edge = stage in (0, last)
        best = [
            min(
                (
                    (best[start][0] + abs(size - share), best[start][1] + edge * size, [*best[start][2], size])
                    for start in range(stage, end)
                    if held(stage, start, end) <= fullest and (size := end - start)
                ),
                default=(_NEVER, 0, []),
            )
            for end in range(num_layers + 1)
        ]
    return best[num_layers][2]
