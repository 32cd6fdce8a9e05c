"""Observation of torch.compile: traces of compilations, walks over a call's inputs, and the compiler's settings."""
