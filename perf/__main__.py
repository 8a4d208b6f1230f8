"""`python -m perf`: measure how fast raysl is on this machine."""

from perf.cli import app
from raysl.cli import run_app

if __name__ == "__main__":
    run_app(app, "python -m perf")
