"""The fewest bytes that each operator must move: everything it needs read once, everything it gives written once.

All in bf16, 2 bytes an element. Indices, targets and offsets are thousandths of it and left out.
"""

from __future__ import annotations

from kernels.operators.shapes import (
    GroupedRows,
    LogitsShape,
    MovedShape,
    ProjectedShape,
    RopeShape,
    RowsShape,
)
from perfguard import Work


def gate_work(shape: RowsShape) -> Work:
    """Gate, up and output; with the gradients of all three, of which the output itself is not needed."""
    return Work(bytes=6 * shape.elements, backward_bytes=10 * shape.elements)


def norm_work(shape: RowsShape) -> Work:
    """x and the result; with the gradient of the result, x and its gradient. Weights are nothing beside."""
    return Work(bytes=4 * shape.elements, backward_bytes=6 * shape.elements)


def norm_and_codes_work(shape: RowsShape) -> Work:
    """The norm's, and a byte of code an element."""
    return Work(bytes=5 * shape.elements, backward_bytes=6 * shape.elements)


def rope_work(shape: RopeShape) -> Work:
    """Turned, and turned back."""
    return Work(bytes=4 * shape.elements, backward_bytes=4 * shape.elements)


def cross_entropy_work(shape: LogitsShape) -> Work:
    """The gradient is written for ignored rows too, whose logits are not read. Backward, as it is timed with its graph
    kept, is a second gradient from the first."""
    return Work(bytes=2 * shape.kept + 2 * shape.elements, backward_bytes=4 * shape.elements)


def linear_cross_entropy_work(shape: ProjectedShape) -> Work:
    """The forward pass has the gradients, too: three products."""
    return Work(flop=3 * shape.flop)


def gather_work(shape: MovedShape) -> Work:
    """A row of x that is asked for often is read once; each row has a gradient."""
    moved = 2 * shape.elements * shape.copies
    return Work(bytes=moved + 2 * shape.distinct, backward_bytes=moved + 2 * shape.elements)


def scatter_work(shape: MovedShape, alignment: int) -> Work:
    """Rows come out with as many zero rows as there could be: the host reads no counts."""
    zeros = shape.groups * (alignment - 1) * shape.width
    return Work(bytes=4 * shape.elements + 2 * zeros, backward_bytes=4 * shape.elements)


def bias_work(shape: GroupedRows) -> Work:
    """The gradient of x is the incoming one, which moves nothing."""
    biases = 2 * shape.groups * shape.width
    return Work(bytes=4 * shape.elements + biases, backward_bytes=2 * shape.elements + biases)
