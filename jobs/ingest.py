"""`raysl ingest` as a Ray job: store a dataset as Parquet files, with all CPUs of the cluster.

    RAY_AUTH_MODE=token ray job submit --address http://127.0.0.1:8265 --working-dir . \\
        --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' \\
        -- python jobs/ingest.py --out s3://bucket/images data=image_folder data.path=/images

Source and --out have to be places that all nodes reach. The same command, submitted again after it was cut off, goes
on with the files that are missing. The log ends with the URI of the folder.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from raysl.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["ingest"]
    main()
