"""Speed of raysl on this machine, compared with the same work without it."""
