"""`kuberay.yaml` as Ray's autoscaler reads it, and against the shape of what it asks of Kubernetes and KubeRay.

The shape has the documented fields of KubeRay 1.5 and of the parts of a pod that the file uses, and nothing else, so a
name that is spelled wrong does not pass.
"""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from raysl.cluster.resources import Resources, worker_shape
from raysl.config.schema import TrainConfig

FILE = Path(__file__).parents[2] / "configs" / "cluster" / "kuberay.yaml"

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
QUANTITY = {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[KMGT]i?)?$"}


def fields(required: str, optional: str = "", **shapes: Any) -> dict[str, Any]:
    """The shape of an object: names of fields, text where `shapes` says nothing else."""
    names = required.split() + optional.split()
    properties = {name: shapes.get(name, TEXT) for name in names}
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": False}


def many(shape: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": shape}


KINDS = {"enum": ["cpu", "memory", "nvidia.com/gpu"]}
QUANTITIES = {"type": "object", "propertyNames": KINDS, "additionalProperties": QUANTITY}
PATH = {"type": "string", "pattern": "^/"}
CONTAINER = fields(
    "name image resources volumeMounts",
    "env ports",
    resources=fields("requests limits", requests=QUANTITIES, limits=QUANTITIES),
    env=many(fields("name value")),
    ports=many(fields("containerPort name", containerPort={"type": "integer", "minimum": 1, "maximum": 65535})),
    volumeMounts=many(fields("name mountPath", mountPath=PATH)),
)
TOLERATION = fields(
    "key operator effect",
    operator={"enum": ["Exists", "Equal"]},
    effect={"enum": ["NoSchedule", "NoExecute", "PreferNoSchedule"]},
)
IN_MEMORY = fields("medium sizeLimit", medium={"const": "Memory"}, sizeLimit=QUANTITY)
POD = fields(
    "serviceAccountName restartPolicy containers volumes",
    "tolerations terminationGracePeriodSeconds",
    restartPolicy={"const": "Never"},
    containers=many(CONTAINER),
    volumes=many(fields("name emptyDir", emptyDir=IN_MEMORY)),
    tolerations=many(TOLERATION),
    terminationGracePeriodSeconds=COUNT,
)
TEMPLATE = fields("spec", spec=POD)
GROUP = fields(
    "groupName replicas minReplicas maxReplicas rayStartParams template",
    **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), COUNT),
    rayStartParams=TEXTS,
    template=TEMPLATE,
)
SPEC = fields(
    "rayVersion enableInTreeAutoscaling autoscalerOptions authOptions headGroupSpec workerGroupSpecs",
    enableInTreeAutoscaling={"type": "boolean"},
    autoscalerOptions=fields(
        "version idleTimeoutSeconds upscalingMode",
        version={"enum": ["v1", "v2"]},
        idleTimeoutSeconds=COUNT,
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
    ),
    authOptions=fields("mode", mode={"enum": ["disabled", "token"]}),
    headGroupSpec=fields("rayStartParams template", rayStartParams=TEXTS, template=TEMPLATE),
    workerGroupSpecs=many(GROUP),
)
METADATA = fields("name namespace")
CLUSTER = fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=METADATA,
    spec=SPEC,
)
ACCOUNT = fields(
    "apiVersion kind metadata", apiVersion={"const": "v1"}, kind={"const": "ServiceAccount"}, metadata=METADATA
)


@pytest.fixture
def objects() -> dict[str, list[dict[str, Any]]]:
    """What the file asks Kubernetes for, by kind."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for each in yaml.safe_load_all(FILE.read_text()):
        by_kind.setdefault(each["kind"], []).append(each)
    return by_kind


@pytest.fixture
def spec(objects: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    (cluster,) = objects["RayCluster"]
    return dict(cluster["spec"])


def pods(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    return {name: group["template"]["spec"] for name, group in ({"head": spec["headGroupSpec"]} | groups).items()}


@pytest.mark.thorough
def test_the_objects_have_the_fields_of_kuberay(objects: dict[str, list[dict[str, Any]]]) -> None:
    assert set(objects) == {"ServiceAccount", "RayCluster"}
    for account in objects["ServiceAccount"]:
        jsonschema.validate(account, ACCOUNT)
    (cluster,) = objects["RayCluster"]
    jsonschema.validate(cluster, CLUSTER)
    cluster["spec"]["workerGroupSpecs"][0]["maxreplicas"] = 2
    with pytest.raises(jsonschema.ValidationError, match="maxreplicas"):
        jsonschema.validate(cluster, CLUSTER)


def test_rays_autoscaler_reads_a_head_without_work_and_groups_from_nothing(
    objects: dict[str, list[dict[str, Any]]],
) -> None:
    (cluster,) = objects["RayCluster"]
    config = _derive_autoscaling_config_from_ray_cr(cluster)
    head, gpu, cpu = (config["available_node_types"][name] for name in (config["head_node_type"], "gpu", "cpu"))
    assert head["resources"]["CPU"] == 0
    assert (gpu["min_workers"], cpu["min_workers"]) == (0, 0)
    assert "GPU" not in cpu["resources"]
    assert 0 < config["idle_timeout_minutes"] <= 30
    cpus = sum(group["resources"]["CPU"] * group["max_workers"] for group in (gpu, cpu))
    shape = worker_shape(TrainConfig(workers=8), Resources(cpus, gpu["resources"]["GPU"] * gpu["max_workers"]))
    assert shape.resources == {"CPU": 1.0, "GPU": 1.0}


def test_every_pod_has_shared_memory_for_the_object_store_within_its_own(spec: dict[str, Any]) -> None:
    for pod in pods(spec).values():
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        (volume,) = pod["volumes"]
        assert (mount["name"], mount["mountPath"]) == (volume["name"], "/dev/shm")
        sizes = (volume["emptyDir"]["sizeLimit"], container["resources"]["limits"]["memory"])
        shared, memory = (int(size.removesuffix("Gi")) for size in sizes)
        # Ray takes three tenths of a pod's memory for its object store; what shared memory cannot hold is on the disk.
        assert 0.3 * memory <= shared < memory


def test_pods_run_under_accounts_that_the_file_makes_and_the_head_alone_under_its_own(
    objects: dict[str, list[dict[str, Any]]], spec: dict[str, Any]
) -> None:
    accounts = {account["metadata"]["name"] for account in objects["ServiceAccount"]}
    used = {name: pod["serviceAccountName"] for name, pod in pods(spec).items()}
    assert used == {"head": "raysl-head", "gpu": "raysl-worker", "cpu": "raysl-worker"}
    assert set(used.values()) == accounts
    assert len({str(each["metadata"]["namespace"]) for kind in objects.values() for each in kind}) == 1


def test_every_pod_has_the_same_image_and_keeps_idle_processes(spec: dict[str, Any]) -> None:
    containers = [pod["containers"][0] for pod in pods(spec).values()]
    assert len({container["image"] for container in containers}) == 1
    names = [{variable["name"] for variable in container["env"]} for container in containers]
    assert all("RAY_idle_worker_killing_time_threshold_ms" in each for each in names)
    image = (FILE.parent / "Dockerfile").read_text()
    assert f"FROM rayproject/ray:{spec['rayVersion']}-" in image
