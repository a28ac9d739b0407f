"""C code for CPUs, compiled for the machine it runs on; everything it does PyTorch does too, in several passes."""
