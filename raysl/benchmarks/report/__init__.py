"""The report of a checkpoint: its contents gathered from the run, its images and its results."""
