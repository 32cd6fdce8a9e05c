"""The record of one exchange between ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Exchange:
    """A collective, or a message from rank to rank.

    Attributes:
        kind: "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send", …
        dimension: the dimension of the mesh that its group spans (`model.mesh.dimension_of`).
        dtype: the dtype of its elements.
        sent, received: bytes of this rank's input and output, including the part that stays on the rank.
        place: the line of Python that caused it; empty if no line did.
        implicit: the operator for which DTensor moved data by itself; empty for other exchanges.
        overlap_flop: floating-point operations issued between its launch and the first use of its result.
        waited: whether the result was waited for before its first use; False also if it was dropped without a wait.
            None if unknown: the wait is no operator (FSDP's own gathers), or the result was not used within the pass.
    """

    kind: str
    dimension: str
    dtype: str
    sent: int
    received: int
    place: str = ""
    implicit: str = ""
    overlap_flop: int = 0
    waited: bool | None = None

    @property
    def name(self) -> str:
        """`all_gather efsdp float32`."""
        return f"{self.kind} {self.dimension} {self.dtype}"

    @property
    def bytes(self) -> int:
        """Bytes of the whole buffer, equal on all ranks: the output of an all_gather, the input of a reduce_scatter. In
        a scatter or a gather only one rank has the whole buffer, so this is the part of a rank."""
        return {"scatter": self.received, "gather": self.sent}.get(self.kind, max(self.sent, self.received))

    @property
    def routed(self) -> bool:
        """Whether the number of bytes may depend on the data, so that ranks differ."""
        return self.kind == "all_to_all"
