"""Passes, which rewrite graphs. Each has one rule."""
