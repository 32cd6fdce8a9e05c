"""Corrects and accelerates Triton's interpreter during guarded and observed calls, counts work, and runs strictly.

`perfguard.interpreter.entry.interpreting` installs all of this, and restores Triton at its end.
"""
