"""The runs of benchmarks that train: their settings, and the predictions for held-out images."""
