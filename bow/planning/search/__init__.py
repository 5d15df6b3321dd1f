"""Search of strategies: baselines, exhaustive search, MCMC, expert designs."""
