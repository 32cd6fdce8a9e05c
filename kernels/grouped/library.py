"""PyTorch's own grouped product, `torch._grouped_mm`: whether it runs natively, and what it has to be fed.

It wants 16-byte aligned bases and strides, refuses overlapping strides, leaves rows past the last group as they
were, and pads rows of its output. Callers of `kernels.grouped.grouped_mm` see none of that.

Shape suffixes: R rows, K inner width, N outer width, E experts.
"""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from kernels.jit import path_of, triton

if triton is not None:
    from kernels.grouped import launch
else:  # without Triton zeros are filled by torch operators
    launch = None  # type: ignore[assignment]

MAX_GROUPS = 1023  # what its kernel that prepares the problem sizes has threads for


def runs_natively(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether both forms run on this device without a host read, found by two small calls, once a device and dtype.

    Where PyTorch has no kernel of its own it loops over the groups and reads `offs` on the host. Raises RuntimeError
    inside a graph capture that comes before the first call.
    """
    if device.type != "cuda":  # elsewhere a host read cannot be told from none
        return False
    if device.index is None:
        device = torch.device(device.type, torch.cuda.current_device())
    return _probe(device, dtype)


@cache
def _probe(device: torch.device, dtype: torch.dtype) -> bool:
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"grouped_mm: its first call for {dtype} on {device} lies inside a graph capture; call it once before"
            )
        offs = torch.tensor([16, 32], dtype=torch.int32, device=device)
        a_RK = torch.zeros(32, 16, dtype=dtype, device=device)
        b_EKN = torch.zeros(2, 16, 16, dtype=dtype, device=device)
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode announces itself as a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            torch._grouped_mm(a_RK, b_EKN, offs=offs)
            torch._grouped_mm(a_RK.t(), a_RK, offs=offs)
        except torch.OutOfMemoryError:
            raise  # says nothing about the product, and is not kept
        except (RuntimeError, AttributeError):  # refused, a host read, or a torch without it
            return False
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return True


def rows_product(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """a (R, K), b (E, K, N), offs (E,) -> (R, N) contiguous."""
    rows, inner = a.shape
    experts, _, outer = b.shape
    if 0 in (rows, inner, experts, outer):
        return a.new_zeros((rows, outer))
    out_RN = torch._grouped_mm(_jagged_rows(a), _matrices(b), offs=offs.contiguous())[:, :outer].contiguous()
    clear_rows(out_RN, offs)
    return out_RN


def groups_product(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """a (K, R), b (R, N), offs (E,) -> (E, K, N) contiguous."""
    inner, rows = a.shape
    experts, outer = offs.numel(), b.shape[1]
    if 0 in (rows, inner, experts, outer):
        return a.new_zeros((experts, inner, outer))
    out_EKN = torch._grouped_mm(_jagged_rows(a.t()).t(), _jagged_rows(b), offs=offs.contiguous())
    out_EKN = out_EKN[:, :inner, :outer].contiguous()
    clear_groups(out_EKN, offs)
    return out_EKN


def _jagged_rows(x_RK: Tensor) -> Tensor:
    """Rows that start on 16 bytes, so that any group may start at any of them; a copy where they do not.

    Rows side by side in memory would put the start of a group anywhere. A width that is no multiple of 16 bytes
    is filled up with zeros, which change no sum.
    """
    rows, width = x_RK.shape
    if _is_aligned(x_RK) and width * x_RK.element_size() % 16 == 0:
        return x_RK
    return _padded(x_RK, (rows, _up(width, x_RK)))


def _matrices(b_EKN: Tensor) -> Tensor:
    """The same for matrices of which either dimension may be the contiguous one; its layout is kept."""
    experts, inner, outer = b_EKN.shape
    unit = 16 // b_EKN.element_size()
    if inner % unit == 0 and outer % unit == 0 and (_is_aligned(b_EKN) or _is_aligned(b_EKN.mT)):
        return b_EKN
    if b_EKN.stride(1) == 1:
        return _padded(b_EKN.mT, (experts, _up(outer, b_EKN), _up(inner, b_EKN))).mT
    return _padded(b_EKN, (experts, _up(inner, b_EKN), _up(outer, b_EKN)))


def _is_aligned(x: Tensor) -> bool:
    """Whether the last dimension is contiguous and all else starts on 16 bytes without overlapping."""
    unit = 16 // x.element_size()
    return (
        x.stride(-1) == 1
        and x.data_ptr() % 16 == 0
        and all(stride % unit == 0 and stride >= x.shape[-1] for stride in x.stride()[:-1])
    )


def _padded(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A contiguous copy in the corner of a tensor of `shape`, zeros around it."""
    exact = tuple(x.shape) == shape
    padded = x.new_empty(shape) if exact else x.new_zeros(shape)
    padded[tuple(slice(size) for size in x.shape)].copy_(x)
    return padded


def _up(width: int, x: Tensor) -> int:
    unit = 16 // x.element_size()
    return -(-width // unit) * unit


def clear_rows(out_RN: Tensor, offs: Tensor) -> None:
    """Zeros from row offs[-1] on; how many they are is known to the device alone."""
    if launch is not None and path_of(launch.clear_unused_rows, out_RN.device) != "eager":
        launch.clear_rows(out_RN, offs)
    else:
        row_R1 = torch.arange(out_RN.shape[0], device=out_RN.device)[:, None]
        out_RN.masked_fill_(row_R1 >= offs[-1], 0)


def clear_groups(out_EKN: Tensor, offs: Tensor) -> None:
    """Zeros for every group without rows. Raises ValueError unless there is one end for each group."""
    if len(out_EKN) != len(offs):  # else the kernel would read behind the ends
        raise ValueError(f"offs: has {len(offs)} ends, the output has {len(out_EKN)} groups; give one end a group")
    if launch is not None and path_of(launch.clear_empty_groups, out_EKN.device) != "eager":
        launch.clear_groups(out_EKN, offs)
    else:
        sizes_E = offs.diff(prepend=offs.new_zeros(1))
        out_EKN.masked_fill_((sizes_E == 0)[:, None, None], 0)
