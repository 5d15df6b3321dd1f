"""Engines on devices with streams."""
