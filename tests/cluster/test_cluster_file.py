"""`cluster.yaml` against Ray's own schema, without a cloud."""

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from raysl.cluster.resources import Resources, worker_shape
from raysl.config.schema import TrainConfig

FILE = Path(__file__).parents[2] / "cluster.yaml"


@pytest.fixture
def cluster() -> dict[str, Any]:
    return dict(yaml.safe_load(FILE.read_text()))


def test_ray_accepts_the_cluster_file(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(cluster))
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config(cluster) | {"nodes": {}})


def test_groups_grow_from_nothing_and_are_given_back(cluster: dict[str, Any]) -> None:
    groups = {
        name: group for name, group in cluster["available_node_types"].items() if name != cluster["head_node_type"]
    }
    assert [group["min_workers"] for group in groups.values()] == [0, 0]
    assert sum(group["max_workers"] for group in groups.values()) <= cluster["max_workers"]
    assert {bool(group["resources"].get("GPU")) for group in groups.values()} == {True, False}
    assert 0 < cluster["idle_timeout_minutes"] <= 30


def test_nothing_runs_on_the_head_and_jobs_can_fill_the_gpus(cluster: dict[str, Any]) -> None:
    groups = cluster["available_node_types"]
    assert groups[cluster["head_node_type"]]["resources"] == {"CPU": 0}

    def most(kind: str) -> float:
        return sum(group["resources"].get(kind, 0) * group.get("max_workers", 0) for group in groups.values())

    shape = worker_shape(TrainConfig(workers=8), Resources(most("CPU"), most("GPU")))
    assert shape.resources == {"CPU": 1.0, "GPU": 1.0}


def test_every_node_installs_raysl_and_shares_the_token(cluster: dict[str, Any]) -> None:
    installed = cluster["setup_commands"][-1].split()[-1]
    assert cluster["file_mounts"][installed] == "."
    assert (FILE.parent / "pyproject.toml").is_file()
    starts = [cluster["head_start_ray_commands"][-1], cluster["worker_start_ray_commands"][-1]]
    assert all(re.match("RAY_AUTH_MODE=token .*ray start ", start) for start in starts)
    assert all("RAY_idle_worker_killing_time_threshold_ms=" in start for start in starts)
    assert "/home/ray/.ray/auth_token" in cluster["file_mounts"]
