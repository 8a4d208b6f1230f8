"""How benchmarks are run: settings, images, tasks side by side, stored results."""
