"""A kernel of perfguard's own that can be made slower by any amount, and the guarded suite that measures it."""
