"""torch's trees of containers: the tensors in whatever a call takes or returns."""

from __future__ import annotations

from torch.utils import _pytree

from perfguard._compat.private import Private

_MODULE = "torch.utils._pytree"
_USE = "finding the tensors in what a call takes and returns"

NAMES = tuple(
    Private(_MODULE, name, _USE)
    for name in (
        "keystr", "tree_flatten", "tree_flatten_with_path", "tree_leaves", "tree_map", "tree_unflatten",
    )
)  # fmt: skip

keystr = _pytree.keystr
tree_flatten = _pytree.tree_flatten
tree_flatten_with_path = _pytree.tree_flatten_with_path
tree_leaves = _pytree.tree_leaves
tree_map = _pytree.tree_map
tree_unflatten = _pytree.tree_unflatten
