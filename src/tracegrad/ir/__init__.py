"""The graph: nodes, the trace that adds them, and their meaning by the reference."""
