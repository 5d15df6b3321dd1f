"""Simulation of a step's task graph: full, delta, in Python and in C++."""
