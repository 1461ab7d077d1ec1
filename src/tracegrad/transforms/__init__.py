"""Transforms of traced functions."""
