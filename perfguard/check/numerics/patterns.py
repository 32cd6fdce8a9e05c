"""Patterns of wrong results, as a hint for debugging: shifted, transposed, wrong only in some columns or rows.

Shape suffixes: R: rows, all dimensions but the last; C: columns, the last one. A vector is a column.
"""

from __future__ import annotations

import itertools

import torch

_CLOSE = 1e-2  # share of the oracle's spread: a right result in the wrong place is this close to a moved oracle
_MOST_SHIFT = 2
_LEAST_SHARE = 0.9  # share of wrong elements in each wrong column or row: a lower share is no pattern


def looks_like(candidate: torch.Tensor, oracle: torch.Tensor, limit: float) -> str:
    """The pattern of a wrong result, or ''.

    Args:
        candidate, oracle: of one shape, real numbers.
        limit: the largest RMSE that passes; elements that are off by more than four times this are wrong.
    """
    if candidate.shape != oracle.shape or candidate.ndim == 0 or candidate.numel() == 0:
        return ""
    width = candidate.shape[-1] if candidate.ndim > 1 else 1
    c_RC, o_RC = (t.detach().double().reshape(-1, width) for t in (candidate, oracle))
    if not bool(o_RC.isfinite().all()):
        return ""
    return _moved(c_RC, o_RC) or _in_part(c_RC, o_RC, 4 * limit)


def _moved(c_RC: torch.Tensor, o_RC: torch.Tensor) -> str:
    """The pattern of right values in wrong places, or ''."""
    for dim, name in enumerate(("row", "column")):
        for by in range(1, _MOST_SHIFT + 1):
            left = o_RC.shape[dim] - by
            if left < 2 * by:
                continue
            for sign, start in (("down" if dim == 0 else "right", 0), ("up" if dim == 0 else "left", by)):
                if _is_close(c_RC.narrow(dim, by - start, left), o_RC.narrow(dim, start, left)):
                    return f"looks shifted {sign} by {by} {name}{'s' * (by > 1)}"
    if c_RC.shape[0] == c_RC.shape[1] and _is_close(c_RC, o_RC.t()):
        return "looks transposed"
    for dim, name in enumerate(("rows", "columns")):
        if o_RC.shape[dim] > 1 and _is_close(c_RC, o_RC.flip(dim)):
            return f"looks as if its {name} were reversed"
    return ""


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether `a` is close to `b`; False if `b` does not vary, as the answer would be meaningless."""
    spread = float((b - b.mean()).square().mean().sqrt())
    return spread > 0 and float((a - b).square().mean().sqrt()) < _CLOSE * spread


def _in_part(c_RC: torch.Tensor, o_RC: torch.Tensor, limit: float) -> str:
    """The pattern of wrong columns or rows among right ones: at most half of them, or one block, such as a group."""
    wrong_RC = (c_RC - o_RC).abs().nan_to_num(torch.inf) > limit
    for dim, name in ((0, "column"), (1, "row")):
        share = wrong_RC.double().mean(dim=dim)
        found = (share > 0).nonzero().flatten().tolist()
        count = len(share)
        if not found or len(found) == count or bool((share[found] < _LEAST_SHARE).any()):
            continue
        block = slice(found[0], found[-1] + 1)
        whole = len(found) == block.stop - block.start
        if not whole and len(found) > count // 2:
            continue
        moved = _moved(c_RC[block], o_RC[block]) if whole and name == "row" else ""
        return f"wrong are {_named(found, count, name)}, and the others right" + (
            f"; there it {moved}" if moved else ""
        )
    return ""


def _named(found: list[int], count: int, name: str) -> str:
    """`columns 48 to 63 of 64`, `each 4th of 64 columns, from 3 on`."""
    if len(found) == 1:
        return f"{name} {found[0]} of {count}"
    steps = {b - a for a, b in itertools.pairwise(found)}
    if steps == {1}:
        return f"{name}s {found[0]} to {found[-1]} of {count}"
    if len(steps) == 1 and len(found) > 2:
        (step,) = steps
        return f"each {step}th of {count} {name}s, from {found[0]} on"
    return f"{len(found)} of {count} {name}s, the first {found[0]}"
