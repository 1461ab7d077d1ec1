"""Eager tensors: ops on values, run at once by the array rules and VJPs of the table."""
