"""The mutation score: which small changes of `kernels/` the guard notices.

    python -m benchmarks.mutation --reach                       # which cases run which lines; kept for what follows
    python -m benchmarks.mutation --sample 400 --json FILE      # judge mutants drawn by a seed; goes on where it ended
    python -m benchmarks.mutation --sample 400 --json FILE --again --lane all  # survivors, with every configuration
    python -m benchmarks.mutation --sample 40 --json FILE --files 'kernels/moe/*'  # of what you change
    python -m benchmarks.mutation --table docs/mutation.md FILE # the page, of what was seen; runs nothing

cosmic-ray makes the mutants, by its own operators and by ours (operators.py). Each is run in a clone by the lane of all
CPUs, `pytest --perfguard --perfguard-lane=cpu`, on cases that reach its line. What no case can tell from the original
is argued in equivalent.toml. Files that hold the oracle or shapes of tests are left out: see FILES in sampling.py.
"""
