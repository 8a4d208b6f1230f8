"""The HTML page of a leaderboard, and that of a comparison of checkpoints."""
