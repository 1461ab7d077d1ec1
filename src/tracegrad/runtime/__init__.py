"""Runtimes: each one executes Programs on one kind of device."""
