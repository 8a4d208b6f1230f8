"""Runs, benchmarks and sweeps on a cluster that starts without any CPU, with Ray's own autoscaler."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.autoscaler import AutoscaledCluster, autoscaled_cluster
from tests.runs.runs import SMALL


@pytest.fixture(scope="module")
def cluster() -> Iterator[AutoscaledCluster]:
    with autoscaled_cluster(idle_s=20) as cluster:
        yield cluster


@pytest.fixture
def from_zero(cluster: AutoscaledCluster) -> AutoscaledCluster:
    """The cluster without a node beside its head."""
    cluster.wait_for_nodes(0)
    return cluster


def start(cluster: AutoscaledCluster, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "raysl", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=cluster.environment,
    )


def pretrain(cluster: AutoscaledCluster, storage: Path, *words: str) -> subprocess.Popen[str]:
    return start(cluster, "pretrain", "quickstart", *SMALL, "train.epochs=1", f"storage={storage}", *words)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=280)
    assert process.returncode == code, output
    assert "Traceback" not in output
    return output


@pytest.mark.cluster
def test_what_can_never_come_is_refused_and_a_wait_ends_by_ctrl_c_or_its_limit(
    from_zero: AutoscaledCluster, tmp_path: Path
) -> None:
    output = finish(pretrain(from_zero, tmp_path, "name=many", "train.workers=8"), code=2)
    limit = f"8 workers are more than the 4 CPUs that this cluster can ever have by {from_zero.config_file}; set"
    assert limit in output
    output = finish(pretrain(from_zero, tmp_path, "name=gpu", "train.device=cuda", "cluster.max_cpus=4"), code=2)
    assert f"1 worker needs a GPU, and this cluster can never have more than 0 by {from_zero.config_file}" in output
    # a GPU that never comes
    wanted = ("train.device=cuda", "cluster.max_gpus=1")
    output = finish(pretrain(from_zero, tmp_path, "name=late", *wanted, "cluster.wait_minutes=0.05"), code=1)
    waited = "1 worker of 1 GPU and 1 CPU and a data task of 0.5 CPU: the cluster has 0 of 1 GPU"
    assert f"no room for workers after 3 s, by cluster.wait_minutes=0.05: waited for {waited}" in output
    process = pretrain(from_zero, tmp_path, "name=stopped", *wanted)
    assert process.stdout is not None
    while "the cluster has 0 of 1 GPU" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    output = finish(process, code=130)
    assert time.monotonic() - begun < 20, "it goes on waiting, though 4 s are usual"
    next_step = f"the same command starts it again ({tmp_path}/stopped)"
    assert output.splitlines()[-1] == f"raysl: interrupted; nothing was saved yet; {next_step}"
    assert from_zero.num_nodes() == 0


@pytest.mark.slow
def test_a_run_a_benchmark_and_a_sweep_bring_the_nodes_that_they_need_and_these_go_again(
    from_zero: AutoscaledCluster, tmp_path: Path
) -> None:
    output = finish(pretrain(from_zero, tmp_path, "name=run", "train.workers=2"))
    waited = "waiting for 2 workers of 1 CPU each and a data task of 0.5 CPU"
    assert f"{waited}: the cluster has 0 of 2.5 CPUs; the autoscaler is adding nodes" in output
    assert "started on 2 workers on cpu" in output
    assert from_zero.num_nodes() == 2
    from_zero.wait_for_nodes(0)

    output = finish(start(from_zero, "benchmark", "--checkpoint", str(tmp_path / "run"), "knn"))
    assert re.search("waiting for 1 CPU for feature extraction: the cluster has 0 of 1 CPU", output)
    assert "knn" in output
    assert (tmp_path / "run" / "report.json").is_file()
    from_zero.wait_for_nodes(0)

    small = (*SMALL, "train.epochs=1", "train.online_knn_every=1ep", "benchmarks=[knn]")
    output = finish(start(from_zero, "sweep", "sweep/quickstart", "trials=2", *small, f"storage={tmp_path}"))
    assert re.search(r"waiting for [\d.]+ CPUs for the first trial: the cluster has 0 of", output)
    assert (tmp_path / "sweep-quickstart" / "leaderboard.json").is_file()
    from_zero.wait_for_nodes(0)
