"""The images of a run are datasets of Ray Data, made wherever a CPU is free."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ray_nodes import client_environment, two_nodes
from tests.runs.runs import SMALL, finish

pytestmark = pytest.mark.cluster

DATASETS = """
import json
import ray
from ray.data._internal.stats import get_or_create_stats_actor
ray.init(logging_level="error", log_to_driver=False)
print(json.dumps(ray.get(get_or_create_stats_actor().get_datasets.remote())))
"""
"""Prints what the Data page of Ray's dashboard shows."""


def test_a_run_is_among_the_executions_of_ray_data_and_nodes_without_workers_make_its_images(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raysl", "pretrain", "quickstart", *SMALL, f"storage={tmp_path}/runs", "name=own"]
    with two_nodes(tmp_path, cpus=(3, 2)) as address:
        environment = {**client_environment(), "RAY_ADDRESS": address}
        # The worker takes all CPUs of the head, so that all data tasks run on the other one.
        process = subprocess.Popen(
            [*command, "train.cpus_per_worker=3"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        output = finish(process, timeout=300)
        shown = subprocess.run(
            [sys.executable, "-c", DATASETS], capture_output=True, text=True, check=True, env=environment, timeout=120
        )
    assert "no CPU of the cluster is free" not in output
    assert "images of worker 0: " in output
    (stream,) = (each for name, each in json.loads(shown.stdout).items() if name.startswith("own, rank 0"))
    assert stream["state"] == "FINISHED"
    assert any(name.startswith("ReadDecodeCropAugment") for name in stream["operators"])
    assert "ReadDecodeCropAugment" in (tmp_path / "runs/own/data_stats.txt").read_text()
