"""This process and its machine: signals, waiting, screen, memory, environment."""
