"""A plugin of pytest (`-p order`) that draws the order of the tests; the seed is Python's hash seed."""

import os
import random

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    random.Random(os.environ["PYTHONHASHSEED"]).shuffle(items)
