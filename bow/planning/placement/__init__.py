"""Places groups of operators on devices: a learned policy, and everything that it is compared with."""
