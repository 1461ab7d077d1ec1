"""Rewrite graphs: each pass is a verb and one rule."""
