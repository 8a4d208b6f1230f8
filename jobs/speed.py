"""`python -m perf` as a Ray job: measure the speed of raysl on the machines of a cluster.

    RAY_AUTH_MODE=token ray job submit --address http://127.0.0.1:8265 --working-dir . \\
        --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' \\
        -- python jobs/speed.py step

The job's log ends with the table.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.cli import app
from raysl.cli import run_app

if __name__ == "__main__":
    run_app(app, "jobs/speed.py")
