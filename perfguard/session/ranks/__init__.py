"""Tests that run on several ranks at once: their launch, their process group, what each rank leaves for the parent."""
