"""Finds the module that a candidate keeps and whose parameters have gradients: `lambda x: net(x)`."""

from __future__ import annotations

from dataclasses import replace

import torch

from perfguard.check.numerics.modules import modules_of
from perfguard.check.numerics.trial import Inputs, run_trial, trained
from perfguard.model.call import Call


def with_kept(call: Call) -> Call:
    """The call with `kept`: the only module that the candidate keeps, if the reference is or keeps its counterpart.

    A candidate whose outputs need no gradient has none to compare: a kernel for inference may read a layer's weights.
    On ranks the gradients are those of one rank, so nothing is kept there. A cold start has to be the first call.
    """
    if isinstance(call.fn, torch.nn.Module) or not call.ranks.alone or call.cold_start is not False:
        return call
    mine, theirs = modules_of(call.fn), modules_of(call.reference)
    if len(mine) != 1 or len(theirs) != 1 or not trained(mine[0]) or not _are_counterparts(mine[0], theirs[0]):
        return call
    inputs = Inputs(call)
    if not inputs.leaf_names and not _needs_gradient(call, inputs):
        return call
    return replace(call, kept=mine[0])


def _needs_gradient(call: Call, inputs: Inputs) -> bool:
    devices = [] if inputs.device.type == "cpu" else [inputs.device]
    try:
        with torch.random.fork_rng(devices, **({"device_type": inputs.device.type} if devices else {})):
            return any(run_trial(call.fn, inputs, seed=call.seed).differentiable)
    except Exception:  # The check calls it again, and says what it was doing.
        return False


def _are_counterparts(mine: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    """Whether two modules have the same parameters in the same order: of one name, or of equal values."""
    if mine is theirs:
        return True
    own, others = trained(mine), trained(theirs)
    return len(own) == len(others) and all(
        one.shape == other.shape and one.device == other.device and (name == its_name or _are_equal(one, other))
        for (name, one), (its_name, other) in zip(own, others, strict=True)
    )


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return not one.is_meta and bool((one.detach().double() == other.detach().double()).all())
