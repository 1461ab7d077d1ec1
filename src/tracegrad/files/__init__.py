"""Files that tracegrad writes and reads: checkpoints, parameters, exported programs and pages."""
