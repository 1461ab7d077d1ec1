"""Graph to graph: each pass is a verb and one rule."""
