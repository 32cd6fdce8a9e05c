"""perfguard's own kernel with an adjustable slowdown, and the guarded suite that measures it."""
