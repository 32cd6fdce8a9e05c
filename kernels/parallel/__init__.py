"""Models of `kernels.layers` over several ranks: experts, heads and widths, data."""

from kernels.parallel.data import shard_data
from kernels.parallel.experts import shard_experts
from kernels.parallel.model import parallelize
from kernels.parallel.tensors import split_attention, split_hidden

__all__ = ["parallelize", "shard_data", "shard_experts", "split_attention", "split_hidden"]
