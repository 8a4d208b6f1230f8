"""What is known of a run before any process starts: its numbers, and what a method is built on."""
