"""`raysl pretrain` as a Ray job.

    RAY_AUTH_MODE=token ray job submit --address http://127.0.0.1:8265 --working-dir . \\
        --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' \\
        -- python jobs/pretrain.py quickstart name=first storage=s3://bucket/runs train.workers=8

The working directory travels to every node, so raysl itself need not be installed there, only what it depends on.
`storage` has to be a place that outlives the cluster: an absolute path that all nodes share, or a URI. The log ends
with the run's URI.

`ray job stop` asks the run to save a checkpoint and waits RAY_JOB_STOP_WAIT_TIME_S before it kills; Ray's default of
3 seconds is too short for a save. The same command, submitted again, goes on at the step of that checkpoint.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from raysl.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["pretrain"]
    main()
