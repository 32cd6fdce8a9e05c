"""Observation of the exchanges between the ranks of a case, by dimension of its mesh."""
