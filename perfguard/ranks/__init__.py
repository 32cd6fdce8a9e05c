"""Tests that run on several ranks at once: their launch, their process group, the files of each rank for the parent."""
