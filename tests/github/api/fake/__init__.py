"""A GitHub on a loopback socket: keeps what is written, refuses what the real one would refuse, fails on command."""

from tests.github.api.fake.faults import Fault
from tests.github.api.fake.server import FakeGitHub
from tests.github.api.fake.world import World

__all__ = ["FakeGitHub", "Fault", "World"]
