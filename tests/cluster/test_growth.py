"""What a cluster may grow to, read from the configuration of its autoscaler, and what a run may ask of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from raysl.cluster import autoscaler
from raysl.cluster.autoscaler import Activity
from raysl.cluster.connection import MAY_GROW
from raysl.cluster.growth import Growth, NodeGroup, read_growth
from raysl.cluster.resources import Resources, run_bundles, worker_shape
from raysl.cluster.waiting_for_nodes import describe_missing, total
from raysl.config.load import load_config
from raysl.config.schema import ClusterConfig, TrainConfig
from raysl.errors import ConfigError

ROOT = Path(__file__).parents[2]
HEAD = NodeGroup(cpus=0, gpus=0)
NOTHING_SAID = ClusterConfig()
ADDING = Activity(is_adding=True)


def may_have(growth: Growth | None, settings: ClusterConfig = NOTHING_SAID, up: tuple[NodeGroup, ...] = (HEAD,)) -> Any:
    return Resources.of(up, growth, settings, MAY_GROW, 0)


def test_the_shipped_cluster_trains_on_its_gpus_while_no_node_is_up() -> None:
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    growth = read_growth(config, "cluster.yaml")
    assert growth is not None
    groups = config["available_node_types"].values()
    assert growth.gpus == sum(group.get("max_workers", 0) * group["resources"].get("GPU", 0) for group in groups) > 0
    shape = worker_shape(TrainConfig(workers=int(growth.gpus)), may_have(growth))
    assert shape.resources == {"CPU": 1.0, "GPU": 1.0}
    with pytest.raises(ConfigError, match=rf"can never have more than {growth.gpus:g} by cluster\.yaml; set train"):
        worker_shape(TrainConfig(workers=int(growth.gpus) + 1), may_have(growth))


def test_cpu_nodes_that_are_up_do_not_keep_a_run_from_the_gpus_that_may_come() -> None:
    growth = Growth((NodeGroup(4, 1, most=2), NodeGroup(64, 0, most=2)), origin="f.yaml")
    have = may_have(growth, up=(HEAD, NodeGroup(64, 0), NodeGroup(64, 0)))
    assert worker_shape(TrainConfig(), have).device == "cuda"
    assert worker_shape(TrainConfig(device="cpu"), have).device == "cpu"
    assert have.task_cpus == 4, "a benchmark's task lies on a node with a GPU"


def test_the_limit_of_all_groups_bounds_each_kind() -> None:
    groups = {
        "head": {"resources": {"CPU": 8}, "max_workers": 0},
        "small": {"resources": {"CPU": 2}, "max_workers": 10},
        "large": {"resources": {"CPU": 16, "GPU": 2}, "max_workers": 4},
        "unlimited": {"resources": {"CPU": 1}},
    }
    growth = read_growth({"available_node_types": groups, "head_node_type": "head", "max_workers": 5}, "f.yaml")
    assert growth is not None
    assert (growth.cpus, growth.gpus) == (4 * 16 + 8 + 2, 8), "five nodes beside the head"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"available_node_types": {"head": {"resources": {"CPU": 8}, "max_workers": 0}}, "head_node_type": "head"},
        {"available_node_types": {"node_1": {"resources": {}, "max_workers": 1}}, "provider": {"type": "readonly"}},
    ],
)
def test_a_cluster_whose_nodes_are_started_by_hand_does_not_grow(config: dict[str, Any]) -> None:
    assert read_growth(config, "f.yaml") is None


def test_a_ray_cluster_of_kubernetes_says_what_may_come() -> None:
    def group(name: str, replicas: int, **limits: object) -> dict[str, Any]:
        containers = [{"name": "ray", "resources": {"limits": limits}}]
        counts = {"groupName": name, "replicas": 0, "minReplicas": 0, "maxReplicas": replicas}
        return {**counts, "rayStartParams": {}, "template": {"spec": {"containers": containers}}}

    head = group("head", 0, cpu=4, memory="8Gi")
    spec = {
        "enableInTreeAutoscaling": True,
        "headGroupSpec": {**head, "rayStartParams": {"num-cpus": "0"}},
        "workerGroupSpecs": [
            group("gpu", 8, cpu=16, memory="64Gi", **{"nvidia.com/gpu": 1}),
            group("cpu", 4, cpu=32, memory="64Gi"),
        ],
    }
    config = _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "a", "namespace": "b"}, "spec": spec})
    growth = read_growth(config, "the RayCluster a")
    assert growth is not None
    assert (growth.cpus, growth.gpus) == (8 * 16 + 4 * 32, 8)


def test_settings_say_what_may_come_where_nobody_else_does() -> None:
    have = may_have(None, ClusterConfig(max_cpus=64, max_gpus=4))
    shape = worker_shape(TrainConfig(workers=4), have)
    assert shape.resources == {"CPU": 1.0, "GPU": 1.0}
    assert have.task_cpus == 1, "the size of the nodes to come is unknown"
    with pytest.raises(ConfigError, match=r"never have more than 4 by cluster.max_gpus=4; set train.workers=4$"):
        worker_shape(TrainConfig(workers=5), have)


def test_more_workers_than_the_given_limit_are_refused_with_numbers_that_start() -> None:
    have = may_have(None, ClusterConfig(max_cpus=4))
    with pytest.raises(ConfigError) as refused:
        worker_shape(TrainConfig(workers=8), have)
    assert str(refused.value) == (
        "8 workers are more than the 4 CPUs that this cluster can ever have by cluster.max_cpus=4; set train.workers=4 "
        "(0.73 CPU each, the rest for data tasks), or train.cpus_per_worker=0.36 to let 8 share them"
    )
    assert worker_shape(TrainConfig(workers=4), have).cpus == 0.73
    assert worker_shape(TrainConfig(workers=8, cpus_per_worker=0.36), have).cpus == 0.36
    with pytest.raises(ConfigError, match=r"never have more than 0; .* adds nodes, set cluster.max_gpus to"):
        worker_shape(TrainConfig(device="cuda"), have)


def test_a_limit_below_the_nodes_that_are_up_is_not_named() -> None:
    have = may_have(None, ClusterConfig(max_cpus=4), (NodeGroup(cpus=6, gpus=0),))
    with pytest.raises(ConfigError, match="8 workers are more than the 6 CPUs that this cluster can ever have; set"):
        worker_shape(TrainConfig(workers=8), have)


def test_without_nodes_and_settings_the_message_names_the_settings() -> None:
    with pytest.raises(ConfigError) as refused:
        worker_shape(TrainConfig(workers=2), may_have(None))
    assert str(refused.value) == (
        "2 workers are more than the 0 CPUs that this cluster can ever have; if its autoscaler adds nodes, set "
        "cluster.max_cpus and cluster.max_gpus to what it may add up to"
    )


def test_a_worker_that_fits_no_node_is_refused() -> None:
    growth = Growth((NodeGroup(2, 0, most=4),), origin="f.yaml")
    with pytest.raises(ConfigError) as refused:
        worker_shape(TrainConfig(cpus_per_worker=3), may_have(growth))
    assert str(refused.value) == (
        "a worker of 3 CPUs fits no node: the largest of this cluster has 2 by f.yaml; "
        "set train.cpus_per_worker=2 or less"
    )


def test_a_run_waits_for_its_workers_and_a_data_task() -> None:
    train, have = TrainConfig(workers=(2, 8)), Resources(64, 8)
    shape = worker_shape(train, have)
    assert total(run_bundles(train, shape, have)) == {"CPU": 2.5, "GPU": 2.0}, "an elastic run for its fewest"
    assert total(run_bundles(train, shape, have.shared(2))) == {"CPU": 2.0, "GPU": 2.0}, "trials share data tasks"


@pytest.mark.parametrize(
    ("up", "free", "activity", "told"),
    [
        ({}, {}, Activity(), "the cluster has 0 of 8 GPUs"),
        ({"GPU": 2.0}, {"GPU": 2.0}, ADDING, "the cluster has 2 of 8 GPUs; the autoscaler is adding nodes"),
        (
            {"GPU": 2.0},
            {},
            ADDING,
            "the cluster has 2 of 8 GPUs, of which 2 are in use by other work (runs a, b); the autoscaler is adding "
            "nodes",
        ),
        (
            {"GPU": 8.0},
            {"GPU": 3.0},
            Activity(),
            "the cluster has 8 GPUs, of which 5 are in use by other work (runs a, b)",
        ),
        ({"GPU": 8.0, "CPU": 4.0}, {"GPU": 8.0, "CPU": 4.0}, Activity(), "the cluster has 4 of 9 CPUs"),
        (
            {"GPU": 9.0, "CPU": 9.0},
            {"GPU": 9.0, "CPU": 9.0},
            Activity(),
            "the cluster has enough, but not together on its nodes",
        ),
        (
            {},
            {},
            Activity(is_adding=True, problem="InsufficientInstanceCapacity"),
            "the cluster has 0 of 8 GPUs; the autoscaler could not add a node: InsufficientInstanceCapacity",
        ),
    ],
)
def test_what_is_missing_is_told(up: dict[str, float], free: dict[str, float], activity: Activity, told: str) -> None:
    assert describe_missing({"CPU": 9, "GPU": 8}, up, free, activity, ["a", "b"]) == told


def test_the_configuration_is_found_by_the_port_of_the_autoscaler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscaler, "PROC", tmp_path)
    for pid, (port, limit) in enumerate([(7001, 3), (7002, 5)]):
        file = tmp_path / f"{port}.yaml"
        types = {"head": {"max_workers": 0}, "cpu": {"max_workers": limit, "resources": {"CPU": 2}}}
        file.write_text(yaml.safe_dump({"available_node_types": types, "head_node_type": "head"}))
        words = ["python", "-u", "/ray/autoscaler/v2/monitor.py", f"--gcs-address=10.0.0.1:{port}"]
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes("\0".join([*words, f"--autoscaling-config={file}"]).encode())
    growth = autoscaler.read_here("7002")
    assert growth == Growth((NodeGroup(2, 0, 5), NodeGroup(0, 0, 1)), None, str(tmp_path / "7002.yaml"))
    assert autoscaler.read_here("7003") is None


def test_settings_of_the_cluster_may_change_on_a_resume_and_have_ranges() -> None:
    config = load_config("quickstart", ["cluster.max_gpus=8", "cluster.wait_minutes=30"])
    assert config.cluster == ClusterConfig(max_gpus=8, wait_minutes=30)
    with pytest.raises(ConfigError, match=r"cluster\.wait_minutes"):
        load_config("quickstart", ["cluster.wait_minutes=0"])
