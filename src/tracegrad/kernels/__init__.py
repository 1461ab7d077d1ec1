"""Turn graphs into kernels: index expressions, lowering, fusing, schedules."""
