"""The bf16 grouped matrix product: one multiplication a group of rows, forward and both gradients."""

from kernels.grouped import reference
from kernels.grouped.ops import Form, Impl, Path, grouped_mm, path

__all__ = ["Form", "Impl", "Path", "grouped_mm", "path", "reference"]
