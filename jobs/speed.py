"""Measure raysl's speed as a Ray job: `ray job submit -- python jobs/speed.py step --json step.json`."""

import sys

from raysl.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "speed")
    main()
