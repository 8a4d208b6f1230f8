"""What is known of a run before a process starts: its numbers, and what a method is built from."""
