"""The mesh of a case of several ranks, as sizes by dimension: `{"efsdp": 2, "ep": 4}`, ranks in row-major order.

Names of process groups differ between ranks and between runs. A fact therefore names the dimensions along which the
ranks of its group differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Mesh = Mapping[str, int]

#: Names of dimensions whose ranks have the same inputs end so: tensor parallelism, and that of experts (`etp`).
SAME_INPUTS = "tp"


def coordinates(rank: int, mesh: Mesh) -> tuple[int, ...]:
    """The coordinate of a rank along each dimension."""
    places = []
    for size in reversed([*mesh.values()]):
        rank, coordinate = divmod(rank, size)
        places.append(coordinate)
    return tuple(reversed(places))


def dimension_of(ranks: Sequence[int], mesh: Mesh) -> str:
    """`ep`, or `efsdp+ep` for a group over both; `part of ep` if some of its ranks are missing; `one rank`.

    Ranks outside the mesh, or any ranks without a mesh, are `4 ranks`.
    """
    if len(ranks) == 1:
        return "one rank"
    if not mesh or max(ranks) >= math.prod(mesh.values()):
        return f"{len(ranks)} ranks"
    positions = zip(*(coordinates(rank, mesh) for rank in ranks), strict=True)
    varying = [name for name, along in zip(mesh, positions, strict=True) if len(set(along)) > 1]
    whole = math.prod(mesh[name] for name in varying) == len(ranks)
    return f"{'' if whole else 'part of '}{'+'.join(varying)}"


def data_place(rank: int, mesh: Mesh) -> tuple[int, ...]:
    """The coordinates of a rank along the dimensions whose ranks have different inputs: all except those named `…tp`,
    whose ranks share the work on the same inputs. Without a mesh, every rank has inputs of its own."""
    if not mesh:
        return (rank,)
    along = zip(mesh, coordinates(rank, mesh), strict=True)
    return tuple(place for name, place in along if not name.endswith(SAME_INPUTS))


def mesh_call(mesh: Mesh) -> str:
    """The call of the fixture that asks for a mesh: `perfguard.mesh(efsdp=2, ep=4)`."""
    return f"perfguard.mesh({', '.join(f'{name}={size!r}' for name, size in mesh.items())})"


def described(mesh: Mesh) -> str:
    """`efsdp 2 x ep 4`."""
    return " x ".join(f"{name} {size}" for name, size in mesh.items())
