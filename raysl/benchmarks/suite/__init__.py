"""How benchmarks are run: what is asked for, what it is measured on, tasks side by side, results by content."""
