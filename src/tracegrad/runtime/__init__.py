"""Runtimes: each executes Programs on one kind of device."""
