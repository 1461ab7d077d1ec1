"""The table of primitives. Importing this package fills the table."""
