"""Measure the speed of raysl as a Ray job: `ray job submit --working-dir . -- python jobs/speed.py step`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.cli import app
from raysl.cli import run_app

if __name__ == "__main__":
    run_app(app, "jobs/speed.py")
