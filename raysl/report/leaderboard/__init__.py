"""The page that a sweep writes while it runs: its leaderboard as a table and as drawings."""
