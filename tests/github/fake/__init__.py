"""A GitHub on a loopback socket: keeps what is written, refuses what the real one would refuse, fails on command."""

from tests.github.fake.faults import Fault
from tests.github.fake.server import FakeGitHub
from tests.github.fake.world import World

__all__ = ["FakeGitHub", "Fault", "World"]
