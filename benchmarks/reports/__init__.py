"""Faults that the public has reported of other projects' kernels and modules, rewritten in our own words.

`python -m benchmarks.reports` tries each as its users would: a small repository whose guarded test was written without
knowing the fault, records of the sound code, and a commit with the fault. Their kinds are no classes of our corpus.

A file of `cases/` is one report, `NUMBER_name.py`:

    \"\"\"What the code does.

    kind: sizes                      its row in the table
    origin: owner/repository#1       where the public reported it; `handed`: its author gave none
    shows: a width of 96             what tells sound code from faulty code
    words: width|columns             a regular expression: what a failure has to speak of, in either case
    \"\"\"

    the kernel or module                          # file kernel.py
    # ---- test ----
    what its user tests                           # file test_kernel.py, behind `from kernel import *`
    # ---- shows ----
    shows(), which returns what the code gives and what it should give

Both versions stand in one text. A line `x = good()  # bad: x = bad()` is `x = good()` in the sound version, and
`x = bad()`, or nothing, in the faulty one; a line `# bad: x()` of its own is there in the faulty one only. Reports of
the kind `correct` are of code that was accused in vain: it must stay quiet, and so must what `# bad:` makes of it.
"""
