"""C++ sources of the native runtime, and CUDA kernels; both are built when they are first used."""
