"""Experts over ranks: whole experts (EP), to whose ranks rows travel (`moe.exchange`), and the width of each (ETP).

Follows torchtitan's `ExpertParallel` and `ExpertTensorParallel` (distributed/expert_parallel).
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from kernels.moe import MoE, SwiGLUExperts
from kernels.moe.exchange import ExpertGroup
from kernels.parallel.weights import place, sum_products

_WIDTH = {"w1": 1, "w3": 1, "w2": 2}  # the dimension that is F


def shard_experts(moe: MoE, mesh: DeviceMesh) -> None:
    """Keep of every routed expert's weights, in place, this rank's part; they become DTensors on `mesh`.

    Over "ep" each rank has E / N whole experts. Over "tp" each has a part of every one's width F. All ranks of "tp"
    have the same tokens, and each gets the rows of all of them: it is their products that are parts, and these are
    summed before rows go back. Gate and routing weights see whole rows, so that their gradients are those of one rank.

    Args:
        moe: holds the same weights on all ranks of `mesh`; nothing is sent to make them so.
        mesh: has a dimension "ep" or "tp", or both in this order.

    Raises:
        ValueError: E or F is no multiple of its ranks; or experts are gpt-oss's, whose biases each rank of "tp" would
            add once.
    """
    names = mesh.mesh_dim_names or ()
    if "tp" in names and not isinstance(moe.experts, SwiGLUExperts):
        raise ValueError(f"moe: has {type(moe.experts).__name__}; only SwiGLU experts are split over tp")
    for name, weight in list(moe.experts.named_parameters()):
        place(moe.experts, name, weight, mesh, [0 if each == "ep" else _WIDTH[name] for each in names])
    if "tp" in names:
        sum_products(moe.experts, mesh["tp"])
    if "ep" in names and mesh["ep"].size() > 1:
        moe.group = ExpertGroup.of(mesh["ep"].get_group(), even=moe.config.balanced)
