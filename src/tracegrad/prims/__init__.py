"""The table of primitives. Importing this package fills it."""
