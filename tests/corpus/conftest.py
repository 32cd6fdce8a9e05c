"""One corpus for all tests of a session; the processes of one run share what was recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.corpus.project import Corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Corpus]:
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent  # of all workers of one run
    made = Corpus(shared / "corpus", gpu=torch.cuda.is_available())
    yield made
    made.close()
