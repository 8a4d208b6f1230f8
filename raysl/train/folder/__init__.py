"""The folder of a run: its settings, its lock, its dataset, and how checkpoints and logs get there."""
