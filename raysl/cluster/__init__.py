"""A Ray cluster: connecting to one, and who gets which share of it."""
