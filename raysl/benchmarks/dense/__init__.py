"""Benchmarks that train on images with masks or boxes: their datasets, networks, batches and scores."""
