"""The bits of tensors, and snapshots of inputs, which report and undo the writes and frees of a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from perfguard._compat.torch_internals import storage_address

_LARGE_STORAGE = 1 << 30  # bytes
_PROPORTION = 4


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers of its element size, in the same shape (complex: with one more dimension)."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.resolve_neg().detach().view(integers[tensor.element_size()])


class Snapshot:
    """The bytes of all storages of the inputs, to report and undo writes.

    If a storage is much larger than the input in it (rows far apart), only the input's elements are kept.

    Args:
        tensors: name, tensor, and whether the run may write it.
    """

    def __init__(self, tensors: Sequence[tuple[str, torch.Tensor, bool]]) -> None:
        self._tensors = tensors
        self._storages: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._apart: list[tuple[str, torch.Tensor, torch.Tensor, bool]] = []
        for name, tensor, mutable in tensors:
            if _far_apart(tensor):
                self._apart.append((name, tensor, bits(tensor).clone(), mutable))
            elif storage_key(tensor) not in self._storages:
                live = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
                self._storages[storage_key(tensor)] = live, live.clone()

    def freed(self) -> list[str]:
        """A text for each argument whose memory was freed. The memory is allocated and filled again."""
        texts = []
        for live, saved in self._storages.values():
            storage = live.untyped_storage()
            if storage.nbytes() < saved.numel():
                names = [name for name, tensor, _ in self._tensors if storage_key(tensor) == storage_key(live)]
                texts += [f"{name}: its memory was freed by the call" for name in names]
                storage.resize_(saved.numel())
                live.copy_(saved)
        return texts

    def changes(self) -> list[str]:
        """A text for each unauthorised write: to an argument, by name, or to the memory beside it."""
        texts = []
        for live, saved in self._storages.values():
            if torch.equal(live, saved):
                continue
            inside = [entry for entry in self._tensors if storage_key(entry[1]) == storage_key(live)]
            modified = [
                f"{name} was modified"
                for name, tensor, mutable in inside
                if not mutable and not torch.equal(bits(tensor), bits(_within(saved, tensor)))
            ]
            if not modified:
                allowed = live.clone()
                for _, tensor, mutable in inside:
                    if mutable:
                        _within(allowed, tensor).copy_(_within(saved, tensor))
                if not torch.equal(allowed, saved):
                    modified = [f"memory beside {inside[0][0]}, in the same storage, was written"]
            texts += modified
        return texts + [
            f"{name} was modified"
            for name, tensor, saved, mutable in self._apart
            if not mutable and not torch.equal(bits(tensor), saved)
        ]

    def restore(self) -> None:
        """Restore the inputs."""
        self.freed()
        for live, saved in self._storages.values():
            if not torch.equal(live, saved):
                live.copy_(saved)
        for _, tensor, saved, _ in self._apart:
            if not torch.equal(bits(tensor), saved):
                bits(tensor).copy_(saved)


def storage_key(tensor: torch.Tensor) -> tuple[str, int]:
    """A key that is equal for tensors in the same storage."""
    return str(tensor.device), storage_address(tensor)


def _far_apart(tensor: torch.Tensor) -> bool:
    """Whether the storage is too large to be copied as a whole."""
    size = tensor.untyped_storage().nbytes()
    return size > _LARGE_STORAGE and size > _PROPORTION * tensor.numel() * tensor.element_size()


def _within(storage: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A view of another storage of the same size, at the place of `tensor`."""
    view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return view.set_(storage.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
