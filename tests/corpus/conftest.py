"""One corpus for all tests of a session; the processes of one run share what was recorded."""

from __future__ import annotations

import pytest
import torch

from tests.corpus.project import Corpus
from tests.nursery import Nursery


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, worker_id: str, interpreting: Nursery) -> Corpus:
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent  # of all workers of one run
    return Corpus(shared / "corpus", torch.cuda.is_available(), interpreting.python)
