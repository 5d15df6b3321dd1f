"""Simulation of a step's task graph: full, delta and incremental algorithms in C++; the reference in Python."""
