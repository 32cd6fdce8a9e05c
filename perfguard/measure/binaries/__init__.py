"""What a call's Triton kernels become on architectures that need not be here: recorded, compiled, disassembled.

`call_binaries` reads a call. `launch_recorder` lets it launch without running anything and notes each launch as
Triton's own compiler would be asked (`unwritten` stands in for results), in a
process of `absent_gpu` if the target is not here. `compiler` has child processes (`compile_worker`) compile what no
cache holds. `kernel_facts` reads the binaries.
"""
