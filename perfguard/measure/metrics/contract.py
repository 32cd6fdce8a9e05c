"""The output contract: the properties besides values that a caller may rely on.

`contract` is a text such as `float8_e4m3fn[64,48] strides (48,1); float32[64,1] strides (1,1)`, followed by the call's
prints, if any: `; prints 9 bytes ('debug: 1')`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from perfguard.measure.metrics.subject import Subject
from perfguard.model.call import Outputs
from perfguard.model.limits import Limits
from perfguard.model.records import Across, Better, Reading
from perfguard.model.units import Unit
from perfguard.tensors.autograd_graph import tree_tensors
from perfguard.tensors.step import Step

if TYPE_CHECKING:
    import torch

    from perfguard.measure.devices.device import Device

TIMED = False

LIMITS = {
    "contract": Limits(Better.SAME, portable=True),
    "nondeterministic_outputs": Limits(Better.LOWER, portable=True, unrecorded=0),
}

_RANK = 57  # The rank is behind memory's, because a text says less at a glance than a number.

# Compilers specialise on pointers divisible by 16. Every allocator aligns to that at least.
_FULL_ALIGNMENT = 16

_LONGEST_PRINT = 40  # A note quotes so many characters of the first line.
_ADDRESS = re.compile(rb"0x[0-9a-fA-F]+")  # Addresses differ between processes.


def read(subject: Subject, device: Device) -> list[Reading]:
    """`contract`: dtype, shape and strides of every output or gradient. Unusual properties follow: requires_grad,
    storage offset, alignment below 16 bytes, another device, shared memory, prints.

    Strides are binding only if the reference's outputs have the same ones. The strides of gradients are not declared.
    """
    import torch

    if not subject.ranks.has_data:  # Tensors of a layout have no addresses.
        return []
    subject.warm_up(device)
    outputs, printed = _run(subject.run, device)
    subject.note_graph(outputs)
    text = describe(outputs, device.torch_device, subject.args)
    note = ""
    if printed:
        line = (printed.decode(errors="replace").strip().splitlines() or [""])[0][:_LONGEST_PRINT]
        # Ranks of one group print separately, but must make equal numbers of calls, so a step is not repeated.
        same = not isinstance(subject.run, Step) and _run(subject.run, device)[1] == printed
        text += f"; prints {len(printed)} bytes ({line!r})" if same else "; prints"
        note = f"a call prints {line!r}: printing takes time; remove it before the case is measured"
    declared = list(subject.declared_strides)
    dense = [each for each in tree_tensors(outputs) if each.layout is torch.strided]
    binding = declared if len(declared) == len(dense) else []
    return [LIMITS["contract"].reading("contract", Unit.TEXT, text, rank=_RANK, note=note, binding_strides=binding)]


def nondeterministic(outputs: Sequence[str]) -> Reading:
    """`nondeterministic_outputs`: 1 if `outputs` differed from run to run in the check, else 0. It is no count, because
    results that depend on such an output differ in some runs only. A process that checks nothing has no such
    reading."""
    note = f"from run to run another {', another '.join(outputs)}" if outputs else ""
    limits = LIMITS["nondeterministic_outputs"]
    return limits.reading("nondeterministic_outputs", Unit.COUNT, int(bool(outputs)), note=note, across=Across.MOST)


def _run(call: Callable[[], Outputs], device: Device) -> tuple[Outputs, bytes]:
    """The outputs of `call`, and the bytes, without addresses, that it wrote to stdout and stderr, including the
    device's printf. The bytes are then passed on to their stream."""
    device.synchronize()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            with _redirected("stdout", 1, out), _redirected("stderr", 2, err):
                outputs = call()
                device.synchronize()
        finally:
            printed = b""
            for file, stream in ((out, sys.stdout), (err, sys.stderr)):
                file.seek(0)
                content = file.read()
                stream.write(content.decode(errors="replace"))
                printed += content
    return outputs, _ADDRESS.sub(b"0x", printed)


@contextlib.contextmanager
def _redirected(name: str, number: int, file: IO[bytes]) -> Iterator[None]:
    """Redirect Python's stream and the file descriptor, which pytest's capture separates, to `file` while inside."""
    stream = getattr(sys, name)
    stream.flush()
    _flush_c()
    saved = os.dup(number)
    writer = open(os.dup(file.fileno()), "w", encoding="utf-8", errors="replace")  # noqa: SIM115
    try:
        os.dup2(file.fileno(), number)
        setattr(sys, name, writer)
        yield
    finally:
        setattr(sys, name, stream)
        writer.close()
        _flush_c()  # C and the device's printf have their own buffers
        os.dup2(saved, number)
        os.close(saved)


def _flush_c() -> None:
    ctypes.CDLL(None).fflush(None)


def describe(outputs: Any, device: torch.device, inputs: tuple[Any, ...] = ()) -> str:
    """The contract of `outputs`, any nesting of tensors and other values, as text: tuples in (), lists in [], dicts in
    {}, a plain tuple without (). Tensors on another device than `device` are marked, and those that share memory with
    each other or with `inputs`."""
    import torch

    from perfguard._compat import torch_utils

    owners: dict[int, str] = {}  # address of a storage -> the first tensor in it
    for index, value in enumerate(inputs):
        for leaf in torch_utils.tree_leaves(value):
            if address := _address(leaf):
                owners.setdefault(address, f"input {index}")
    seen: list[torch.Tensor] = []

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            name = f"output {len(seen)}"
            seen.append(value)  # Its address is not used again while it is alive.
            address = _address(value)
            owner = owners.setdefault(address, name) if address else name
            return _tensor(value, device) + (f" shares memory with {owner}" if owner != name else "")
        if isinstance(value, dict):
            return "{" + "; ".join(f"{key}: {text(item)}" for key, item in value.items()) + "}"
        if isinstance(value, tuple):
            return "(" + "; ".join(map(text, value)) + ")"
        if isinstance(value, list):
            return "[" + "; ".join(map(text, value)) + "]"
        return "None" if value is None else type(value).__name__

    if isinstance(outputs, tuple) and len(outputs) > 1:
        return "; ".join(map(text, outputs))
    return text(outputs)


def _address(value: object) -> int:
    """The address of a tensor's storage; 0 for values without memory."""
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return 0
    return value.untyped_storage().data_ptr()


def _tensor(tensor: torch.Tensor, device: torch.device) -> str:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    parts = [f"{dtype}[{','.join(map(str, tensor.shape))}]"]
    if tensor.layout is torch.strided:
        parts.append(f"strides ({','.join(map(str, tensor.stride()))})")
        if tensor.storage_offset():
            parts.append(f"offset {tensor.storage_offset()}")
        alignment = tensor.data_ptr() & -tensor.data_ptr()  # This is the lowest set bit, and 0 without memory.
        if 0 < alignment < _FULL_ALIGNMENT:
            parts.append(f"aligned to {alignment}")
    else:
        parts.append(str(tensor.layout).removeprefix("torch."))
    if tensor.requires_grad:
        parts.append("requires_grad")
    if tensor.device.type != device.type:
        parts.append(f"on {tensor.device.type}")
    return " ".join(parts)
