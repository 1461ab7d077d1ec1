"""Run Programs: parameters, steps, results, and the thread that owns the device."""
