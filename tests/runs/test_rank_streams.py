"""The images of a run are datasets of Ray Data, made wherever a CPU is free."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raysl.cluster.board import Board
from raysl.runs.failures import FailureNotes
from raysl.runs.rank_streams import RankStreams
from raysl.runs.watch import FailureWatch
from tests.ray_nodes import client_environment, some_nodes
from tests.runs.runs import SMALL, finish

DATASETS = """
import json
import ray
from ray.data._internal.stats import get_or_create_stats_actor
ray.init(logging_level="error", log_to_driver=False)
print(json.dumps(ray.get(get_or_create_stats_actor().get_datasets.remote())))
"""
"""Prints what the Data page of Ray's dashboard shows."""


@pytest.mark.parametrize(
    ("labels", "num_nodes"),
    [
        pytest.param((), 2, marks=pytest.mark.cluster),
        pytest.param(("ray-subcluster=a", "ray-subcluster=a", "zone=b"), 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_is_among_the_executions_of_ray_data_and_nodes_without_workers_make_its_images(
    tmp_path: Path, labels: tuple[str, ...], num_nodes: int
) -> None:
    command = [sys.executable, "-m", "raysl", "pretrain", "quickstart", *SMALL, f"storage={tmp_path}/runs", "name=own"]
    with some_nodes(tmp_path, 3, 2, 2, labels=labels) as address:
        environment = {**client_environment(), "RAY_ADDRESS": address}
        # The worker takes all CPUs of the head, so that all data tasks run on the others.
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
    streams = [each for name, each in json.loads(shown.stdout).items() if name.startswith("own, rank 0")]
    assert streams
    for stream in streams:
        assert stream["state"] == "FINISHED"
        assert any(name.startswith("ReadDecodeCropAugment") for name in stream["operators"])
    stats = (tmp_path / "runs/own/data_stats.txt").read_text()
    assert "ReadDecodeCropAugment" in stats
    assert max(map(int, re.findall(r"(\d+) nodes used", stats))) == num_nodes, stats


def test_what_ray_prints_of_a_run_has_no_variable_of_its_environment() -> None:
    variables = {"AWS_SECRET_ACCESS_KEY": "hunter22"}
    streams = RankStreams([None], "own", "DecodeCrop", 0.5, None, variables)
    watch = FailureWatch(FailureNotes(Board("own")), "runs/own", 3, 0, 60.0, {}, variables)
    assert "hunter22" not in f"{streams!r} {watch!r}"
