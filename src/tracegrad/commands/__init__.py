"""The command line: `tracegrad doctor`, `bench`, `serve` and the rest."""
