"""Observation of torch.compile: traces of compilations, walks over a call's inputs, and the compiler's settings."""

from perfguard.compiling.replaying import replayable, replayed
from perfguard.compiling.settings import settings
from perfguard.compiling.trace import Trace, traced
from perfguard.compiling.walk import Walked, cached_graphs, forget_compiled, walk

__all__ = [
    "Trace",
    "Walked",
    "cached_graphs",
    "forget_compiled",
    "replayable",
    "replayed",
    "settings",
    "traced",
    "walk",
]
