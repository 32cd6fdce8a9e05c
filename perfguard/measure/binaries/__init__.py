"""What a call's Triton kernels become on architectures that need not be here: recorded, compiled, disassembled.

`launch_recorder` lets a call launch without running anything and notes each launch as Triton's own compiler would be
asked; `compiler` has child processes compile what no cache holds; `disassembly` reads the binaries; `targets` knows
limits.
"""
