"""What drives a Program: parameters, steps, results, and the thread that owns the device."""
