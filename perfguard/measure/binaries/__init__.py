"""What a call's Triton kernels are on architectures that need not be here: followed, fingerprinted, compared.

`call_binaries` follows a call. `launch_recorder` lets it launch without running anything and notes each launch as
Triton's own compiler would be asked (`unwritten` stands in for results), in a process of `absent_gpu` if the target is
not here. `kernel_code` makes fingerprints, which tell whether a record is of the same kernels. If it is not,
`comparison` compares the base's kernels with the working tree's: those that `matching` pairs. `compiler` has child
processes (`compile_worker`) compile what no cache holds. `kernel_facts` reads the binaries.
"""
