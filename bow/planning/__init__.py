"""Finds strategies: splits of operators over devices, simulated and searched. Nothing here runs anything."""
