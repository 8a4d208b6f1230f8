"""Changed files for whatever reads files: `python -m tests.security.fuzz TARGET [SECONDS]`, or `-m slow` of pytest."""
