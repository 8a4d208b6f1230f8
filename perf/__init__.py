"""How fast raysl is on this machine, beside the same work without it."""
