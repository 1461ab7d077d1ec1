"""Small complete trainings on data that ships with the package: `tracegrad demo`, `demo sine`, `demo gpt`."""
