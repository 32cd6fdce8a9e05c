"""A layout: one process acts as one rank of many. Its collectives return at once, and its tensors have no data.

Thus the exchanges of the ranks are read in seconds, at the model's true widths. The test declares everything that
depends on data, such as the number of rows for each rank, because tensors cannot be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfguard._compat import torch_distributed
from perfguard.model.call import Call
from perfguard.model.errors import UsageError
from perfguard.ranks.rank_group import RankGroup

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass
class Layout(RankGroup):
    """The ranks of a layout. Create it with `layout_of`.

    Attributes:
        without_data: holds the mode in which tensors have no data. The first mesh enters the mode.
    """

    has_data = False
    without_data: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def given(self, call: Call) -> Call:
        """The call without times and derived inputs, because its tensors have no data."""
        return replace(super().given(call), timed=False, hard=None)

    def mesh(self, dimensions: Mapping[str, int]) -> DeviceMesh:
        """The mesh, as in any group. Tensors made after this have no data."""
        first = not self._meshes
        with torch_distributed.without_modes():  # A mesh stores its ranks in tensors, which need data.
            mesh = super().mesh(dimensions)
        if first:
            self.without_data.enter_context(torch_distributed.tensors_without_data())
        return mesh


@contextlib.contextmanager
def layout_of(ranks: int, rank: int = 0) -> Iterator[Layout]:
    """This process as one of `ranks` ranks, on torch's backend "fake".

    Raises:
        UsageError: the process already has a process group.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        raise UsageError("layout=…: this process has a process group already; destroy it before the test")
    store = torch_distributed.fake_store()
    dist.init_process_group("fake", store=store, rank=rank, world_size=ranks)
    layout = Layout(rank, ranks, "cpu", store, 0.0)
    try:
        with layout.without_data:
            yield layout
    finally:
        dist.destroy_process_group()
        torch_distributed.forget_shardings()  # They name destroyed groups, and later groups reuse the names.
