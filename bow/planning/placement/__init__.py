"""Device placement of operator groups: a learned policy, and the methods it is compared with."""
