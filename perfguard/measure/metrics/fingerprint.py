"""A hash of a call's work on the device. If it is unchanged, the device time cannot have changed.

The code of every kernel, grids and order come from the device (`Activity.code`). This module adds the conditions
under which the same code runs differently: the inputs' shapes, strides, alignment and contents, the state of the
cache, the environment variables that libraries read, and the kind of device.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import Limits
from perfguard.model.records import Better, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    import torch

    from perfguard.measure.devices.device import Device

TIMED = False

UNKNOWN = "unknown"
_COVERS = ["device_time_us"]

LIMITS = {"fingerprint": Limits(Better.SAME, gated=False, covers=tuple(_COVERS))}

# Compilers specialise on pointers divisible by 16; caches depend on more. No allocator gives less than this.
_FULL_ALIGNMENT = 64

# Integers steer kernels (offsets, indices, masks): small tensors of them are hashed to the last bit.
_FEW_BYTES = 2**20

# Variables that make the same kernels and calls run differently, or that choose between them at run time. Variables
# that only change the compiled code are not needed here, since the code is hashed.
_VARIABLES = (
    "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY",
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING",
    "GPU_MAX_HW_QUEUES", "HIP_LAUNCH_BLOCKING", "HIPBLASLT_TENSILE_LIBPATH", "HSA_CU_MASK", "HSA_ENABLE_SDMA",
    "NVIDIA_TF32_OVERRIDE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_TUNABLEOP_ENABLED", "ROCBLAS_TENSILE_LIBPATH", "ROC_GLOBAL_CU_MASK", "SYCL_CACHE_PERSISTENT",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_BLAS_PREFER_HIPBLASLT",
)  # fmt: skip


def read(subject: Subject, device: Device) -> list[Reading]:
    """`fingerprint`, not gated: 16 hex digits, which cover the device time, or `unknown`, which covers nothing, if the
    code of any kernel is unavailable. Nothing on a CPU, and for a subject that is not timed."""
    if not device.asynchronous or not subject.timed:
        return []
    code = subject.activity(device).code
    value = UNKNOWN if code is None else fingerprint(code, subject, device, os.environ)
    covers = [] if code is None else _COVERS
    return [Reading("fingerprint", Unit.TEXT, value, better=Better.SAME, gated=False, covers=covers, drifts=True)]


def fingerprint(code: str, subject: Subject, device: Device, environment: Mapping[str, str]) -> str:
    """16 hex digits of `code`, the hash of the device's work, and of all conditions that change how it runs."""
    facts = [
        device.identity.slug,
        subject.direction,
        subject.cache,
        code,
        [(name, environment[name]) for name in _VARIABLES if name in environment],
        _describe(subject.args),
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _describe(inputs: tuple[Any, ...]) -> list[object]:
    """One entry for each leaf of the inputs."""
    import torch

    from perfguard._compat import torch_utils

    leaves, structure = torch_utils.tree_flatten(inputs)
    described: list[object] = [str(structure)]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            described.append(_tensor(leaf.detach()))
        elif isinstance(leaf, bool | int | float | complex | str | bytes | type(None) | torch.dtype):
            described.append(repr(leaf))
        else:  # a repr may contain an address, which differs between processes
            described.append(type(leaf).__qualname__)
    return described


def _tensor(tensor: torch.Tensor) -> tuple[object, ...]:
    address = tensor.data_ptr()
    alignment = min(_FULL_ALIGNMENT, address & -address) if address else _FULL_ALIGNMENT
    return str(tensor.dtype), tuple(tensor.shape), tensor.stride(), alignment, _contents(tensor)


def _contents(tensor: torch.Tensor) -> str:
    """A digest of the tensor's values: exact for few integers, else a sum of 64-bit words of the tensor's memory.

    Sums of integers do not depend on their order, so the same values give the same sum on every run.
    """
    import torch

    integers = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    if integers and tensor.numel() * tensor.element_size() <= _FEW_BYTES:
        return hashlib.sha256(repr(tensor.tolist()).encode()).hexdigest()
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),))  # type: ignore[call-overload]
    whole = flat.numel() // 8 * 8
    words = int(flat[:whole].view(torch.int64).sum())
    return f"{words} {flat[whole:].tolist()}"
