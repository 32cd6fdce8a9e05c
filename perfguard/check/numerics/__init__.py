"""Accuracy of a candidate by reference and oracle: the rule, the codes of 8-bit floats, the oracle, one trial."""

from perfguard.check.numerics.rule import compare

__all__ = ["compare"]
