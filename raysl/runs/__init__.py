"""Runs on Ray: a folder, its preparation, workers, and what follows, stops and forks them."""
