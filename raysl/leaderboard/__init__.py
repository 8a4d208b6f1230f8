"""What a sweep ends with: its runs as entries, one row for each choice of settings, in a table and as files."""
