"""Other libraries on the same images, with the same network, budget and views: `python -m perf peers`."""
