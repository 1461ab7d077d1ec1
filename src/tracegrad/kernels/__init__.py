"""From a graph to kernels: index expressions, lowering, fusing, schedules."""
