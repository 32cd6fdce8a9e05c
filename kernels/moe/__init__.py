"""The MoE layer: router, dispatch, experts in bf16 or fp8, combine, shared experts, balance."""

from kernels.grouped import grouped_mm
from kernels.moe import reference
from kernels.moe.balance import update_before_step, update_expert_bias
from kernels.moe.config import MoEConfig
from kernels.moe.dispatch import Dispatch, collect, plan, spread
from kernels.moe.experts import SharedExperts, SwiGLUExperts
from kernels.moe.gpt_oss import ClampedExperts
from kernels.moe.layer import MoE
from kernels.moe.partition import LayerMemory, layer_partition, layer_partition_by_memory
from kernels.moe.router import Router, Routing
from kernels.moe.saved import SavedProfile, SavedStorage, profile_saved

__all__ = [
    "ClampedExperts",
    "Dispatch",
    "LayerMemory",
    "MoE",
    "MoEConfig",
    "Router",
    "Routing",
    "SavedProfile",
    "SavedStorage",
    "SharedExperts",
    "SwiGLUExperts",
    "collect",
    "grouped_mm",
    "layer_partition",
    "layer_partition_by_memory",
    "plan",
    "profile_saved",
    "reference",
    "spread",
    "update_before_step",
    "update_expert_bias",
]
