"""Derive seeds from seeds: equal inputs give equal streams of random numbers."""

_MASK = (1 << 64) - 1


def derive_seed(*parts: int) -> int:
    """Mix whole numbers (a seed, a round, a learner, ...) into one 63-bit seed.

    Neighbouring inputs give unrelated seeds: `(seed=0, round=1)` and `(seed=1, round=0)` share no random numbers.

    Example:
        >>> derive_seed(0, 1) == derive_seed(1, 0)
        False

    References:
        Steele, Lea, Flood, Fast splittable pseudorandom number generators, 2014 (SplitMix64).
    """
    state = 0
    for part in parts:
        state = (state + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1
