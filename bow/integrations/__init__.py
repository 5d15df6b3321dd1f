"""bow inside other libraries: one file each, loaded by `bow.<library>` when it is first used, and by nothing else."""
