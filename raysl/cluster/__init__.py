"""A Ray cluster: connecting to one, and the shares of its users."""
