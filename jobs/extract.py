"""`raysl extract` as a Ray job: write the features of a run's images to a Parquet file.

    RAY_AUTH_MODE=token ray job submit --address http://127.0.0.1:8265 --working-dir . \\
        --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' \\
        -- python jobs/extract.py --checkpoint s3://bucket/runs/first --split train

The log ends with the URI of the file, beside the checkpoint unless --out names another place.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from raysl.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["extract"]
    main()
