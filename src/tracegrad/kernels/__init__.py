"""Turn graphs into kernels: storage decisions, fusing, lowering to index expressions, launches and tilings."""
