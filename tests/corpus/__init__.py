"""The regression corpus: classes of regressions that happened in public, planted in our kernels and judged.

`pytest tests/corpus` judges them; `python -m tests.corpus --table docs/corpus.md` writes the table, with rivals.
A mutant is a record (`mutant.py`) in one of the modules that hold `MUTANTS`. It is applied to a copy
of `kernels/` and of one small guarded suite (`suites/`), and `pytest --perfguard` says what it sees (`project.py`).
"""
