"""These kernels under the names and signatures of other libraries, so that trying them is a changed import."""
