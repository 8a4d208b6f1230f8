"""`raysl benchmark` as a Ray job: measure a checkpoint, or the newest one of a run.

    RAY_AUTH_MODE=token ray job submit --address http://127.0.0.1:8265 --working-dir . \\
        --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' \\
        -- python jobs/benchmark.py --checkpoint s3://bucket/runs/first knn low_shot

The log ends with the URI of the report, in the folder of the run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from raysl.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["benchmark"]
    main()
