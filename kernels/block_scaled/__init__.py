"""FP8 for training with a scale a block: DeepSeek-V3's squares of 128 and OCP's MXFP8, and the groups they multiply."""

from kernels.block_scaled import reference
from kernels.block_scaled.grouped_mm import Scaling, grouped_mm, path
from kernels.block_scaled.permute import Padded, permute_and_pad, unpermute

__all__ = ["Padded", "Scaling", "grouped_mm", "path", "permute_and_pad", "reference", "unpermute"]
