"""A call's Triton kernels on architectures that may be absent: followed, fingerprinted, compared.

`call_binaries` follows a call. `launch_recorder` records the specialisation of each launch without running it
(`unwritten` replaces results by zeros), in a process of `absent_gpu` if the target is absent. `kernel_code` makes
fingerprints, which show whether a record has the same kernels. If not, `matching` pairs the base's kernels with the
working tree's, and `comparison` compares them. Child processes of `compiler` (`compile_worker`) compile binaries that
no cache holds. `kernel_facts` reads the binaries.
"""
