"""Search of partitions: baselines, exhaustive search, MCMC, expert designs."""
