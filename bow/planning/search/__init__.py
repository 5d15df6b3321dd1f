"""Search for partitions: baselines, expert designs, Markov chain Monte Carlo, exhaustive search."""
