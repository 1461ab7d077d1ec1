"""The command line: `tracegrad demo`, `doctor`, `bench`, `inspect` and `serve`."""
