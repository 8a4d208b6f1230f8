"""What a run leaves to look at: report.json for machines, report.html for people, a table for the terminal."""
