"""Accuracy of a candidate by reference and oracle: the rule, the codes of 8-bit floats, the oracle, one trial."""
