"""Callbacks: what every run logs and writes, and those that a run's settings name."""
