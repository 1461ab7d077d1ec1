"""Reports on a program as text, tables and HTML: its parts, its memory and its time."""
