"""The files for `ray up` against Ray's own schema, without a cloud, and what nodes of every cloud have in common."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from raysl.cluster.resources import Resources, worker_shape
from raysl.config.config_files import config_names
from raysl.config.schema import TrainConfig

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "cluster"
FILES = ("aws", "gcp")
COMMANDS = {"head_start_ray_commands": "--head", "worker_start_ray_commands": "--address=$RAY_HEAD_IP"}


def load(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))


def groups_of(cluster: dict[str, Any]) -> dict[str, Any]:
    """Groups of nodes without the head."""
    head = cluster["head_node_type"]
    return {name: group for name, group in cluster["available_node_types"].items() if name != head}


@pytest.mark.parametrize("name", FILES)
def test_ray_accepts_the_cluster_file(name: str) -> None:
    cluster = load(name)
    validate_config(prepare_config(cluster))
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config(cluster) | {"nodes": {}})


def test_the_file_at_the_root_is_the_one_for_aws() -> None:
    assert (FOLDER / "aws.yaml").read_text() == (ROOT / "cluster.yaml").read_text()


def test_no_run_is_started_from_a_cluster_file() -> None:
    assert [name for name in config_names() if name.startswith("cluster/")] == []


@pytest.mark.parametrize("name", FILES)
def test_groups_grow_from_nothing_and_are_given_back(name: str) -> None:
    cluster = load(name)
    groups = groups_of(cluster)
    assert {group["min_workers"] for group in groups.values()} == {0}
    assert sum(group["max_workers"] for group in groups.values()) <= cluster["max_workers"]
    assert {bool(group["resources"].get("GPU")) for group in groups.values()} == {True, False}
    assert 0 < cluster["idle_timeout_minutes"] <= 30


@pytest.mark.parametrize("name", FILES)
def test_nothing_runs_on_the_head_and_jobs_can_fill_the_gpus(name: str) -> None:
    cluster = load(name)
    assert cluster["available_node_types"][cluster["head_node_type"]]["resources"] == {"CPU": 0}

    def most(kind: str) -> float:
        return sum(group["resources"].get(kind, 0) * group["max_workers"] for group in groups_of(cluster).values())

    shape = worker_shape(TrainConfig(workers=8), Resources(most("CPU"), most("GPU")))
    assert shape.resources == {"CPU": 1.0, "GPU": 1.0}


@pytest.mark.parametrize("name", FILES)
def test_every_node_shares_the_token_and_installs_nothing_when_it_starts(name: str) -> None:
    cluster = prepare_config(load(name))
    for commands, word in COMMANDS.items():
        *_, start = cluster[commands]
        assert re.match(f"RAY_AUTH_MODE=token .*ray start {re.escape(word)}", start)
        assert "RAY_idle_worker_killing_time_threshold_ms=" in start
    assert "/home/ray/.ray/auth_token" in cluster["file_mounts"]
    # Ray puts a `pip install` of its own there if these are left out.
    setups = ("setup_commands", "head_setup_commands", "worker_setup_commands")
    assert {name: cluster[name] for name in setups} == {name: [] for name in setups}
    assert "raysl" in cluster["docker"]["image"]


def _wrong_fields(value: Any, shape: dict[str, Any], schemas: dict[str, Any], path: str = "") -> list[str]:
    """Fields of a request that Google's description of its interface does not have, or has with other values."""
    if "$ref" in shape:
        return _wrong_fields(value, schemas[shape["$ref"]], schemas, path)
    if isinstance(value, dict):
        known = shape.get("properties", {})
        wrong = [f"{path}.{name}" for name in value if name not in known]
        for name in known.keys() & value.keys():
            wrong += _wrong_fields(value[name], known[name], schemas, f"{path}.{name}")
        return sorted(wrong)
    if isinstance(value, list):
        return [name for each in value for name in _wrong_fields(each, shape.get("items", {}), schemas, path)]
    is_right = value in shape["enum"] if "enum" in shape else shape.get("type") == _TYPES[type(value)]
    return [] if is_right else [f"{path}={value}"]


_TYPES = {str: "string", bool: "boolean", int: "string"}  # 64 bits are text in Google's JSON; its API takes both


@pytest.mark.thorough
def test_google_cloud_knows_every_field_of_a_node() -> None:
    documents = Path(str(pytest.importorskip("googleapiclient.discovery_cache").__file__)).parent / "documents"
    schemas = json.loads((documents / "compute.v1.json").read_text())["schemas"]
    nodes = [group["node_config"] for group in load("gcp")["available_node_types"].values()]
    assert [name for node in nodes for name in _wrong_fields(node, schemas["Instance"], schemas)] == []
    wrong = nodes[1] | {"scheduling": {"provisioningModel": "CHEAP", "moved": False}}
    found = _wrong_fields(wrong, schemas["Instance"], schemas)
    assert found == [".scheduling.moved", ".scheduling.provisioningModel=CHEAP"]


def test_nodes_of_google_cloud_have_their_own_network_and_account_and_can_hold_gpus() -> None:
    cluster = load("gcp")
    provider = cluster["provider"]
    assert {"project_id", "region", "availability_zone"} <= set(provider)
    assert provider["availability_zone"].startswith(provider["region"])
    for name, group in cluster["available_node_types"].items():
        node = group["node_config"]
        # With a network in every group Ray takes none of its own choice, whose SSH may be open to all.
        assert node["networkInterfaces"][0]["subnetwork"].endswith("/raysl")
        accounts = [each["email"].partition("@")[0] for each in node.get("serviceAccounts", [])]
        assert accounts == ([] if name == "head" else ["raysl-worker"])
        # Google Cloud refuses a machine with GPUs that may be moved while it runs.
        moves = node.get("scheduling", {}).get("onHostMaintenance")
        assert moves == ("TERMINATE" if group["resources"].get("GPU") else None)


def test_the_image_is_built_from_the_ray_that_raysl_needs_and_from_files_that_exist() -> None:
    lines = (FOLDER / "Dockerfile").read_text()
    (version,) = re.findall(r"^FROM rayproject/ray:([\d.]+)-py311-gpu$", lines, re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text()
    (floor,) = re.findall(r'"ray\[default,train,tune,data\]>=([\d.]+)"', project)
    assert [int(part) for part in version.split(".")] >= [int(part) for part in floor.split(".")]
    assert f'"ray=={version}"' in lines  # pip must not replace the Ray of the base image
    copied = re.findall(r"^COPY --chown=ray (.+) /tmp/raysl\S*$", lines, re.MULTILINE)
    assert [file for files in copied for file in files.split() if not (ROOT / file).exists()] == []
    (extras,) = re.findall(r"/tmp/raysl\[([\w,]+)\]", lines)
    assert {"s3", "gcs"} <= set(extras.split(","))
    assert [extra for extra in extras.split(",") if f"\n{extra} = [" not in project] == []
