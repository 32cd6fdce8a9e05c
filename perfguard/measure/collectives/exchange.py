"""One exchange between ranks, as a recorder saw it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Exchange:
    """A collective, or a message from rank to rank.

    Attributes:
        kind: "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send", …
        dimension: of the mesh that its group spans (`model.mesh.dimension_of`).
        dtype: of its elements.
        sent, received: bytes of this rank's input and output, with the part that stays on the rank.
        place: the line of Python that caused it; empty if none did.
        implicit: the operator for which DTensor moved data without being asked to; empty for other exchanges.
        overlap_flop: floating-point operations issued between its launch and the first use of its result.
        waited: whether the result was waited for before its first use; False also if it was dropped without a wait.
            None if unknown: waiting is no operator, as for FSDP's own gathers, or it was not used within the pass.
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
        """The whole buffer, the same on all ranks: the gathered one of an all_gather, the input of a reduce_scatter.
        Of a scatter or a gather, in which one rank alone has it, the part of a rank."""
        return {"scatter": self.received, "gather": self.sent}.get(self.kind, max(self.sent, self.received))

    @property
    def routed(self) -> bool:
        """Whether its bytes may follow the data: each rank then has its own."""
        return self.kind == "all_to_all"
