"""The planning problem: operators, devices, tilings and partitions."""
