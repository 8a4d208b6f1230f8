"""What benchmarks share that train: the settings of their runs, and what these say of held-out images."""
