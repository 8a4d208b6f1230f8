"""`raysl sweep` as a Ray job: search over settings, with as many runs at a time as the cluster can hold.

    RAY_AUTH_MODE=token ray job submit --address http://127.0.0.1:8265 --working-dir . \\
        --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' \\
        -- python jobs/sweep.py sweep/quickstart trials=8 storage=s3://bucket/runs

The log ends with the URI of the leaderboard. The same command, submitted again, goes on with the trials that are left.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from raysl.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["sweep"]
    main()
