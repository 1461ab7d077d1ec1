"""The graph: its nodes, the trace that adds them, and the reference evaluation on arrays."""
