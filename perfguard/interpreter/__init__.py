"""Triton's interpreter, made right, strict, counting and fast while a guarded or observed call runs.

Everything here is entered by `perfguard.interpreter.entry.interpreting`, which puts Triton back as it was when it ends.
"""
