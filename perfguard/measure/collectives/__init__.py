"""Observation of a case of several ranks: its exchanges between ranks, by dimension of its mesh."""
