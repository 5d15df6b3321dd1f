"""Adapters to other libraries, one file each; `bow.<library>` imports it on first use."""
