"""The line of a run that waits for workers: what is missing, and how it goes on with fewer."""

import pytest

from raysl.cluster.resources import WorkerShape
from raysl.config.schema import TrainConfig
from raysl.runs.missing import describe_missing

CPU = WorkerShape("cpu", cpus=1.0, task_cpus=0.5)
GPU = WorkerShape("cuda", cpus=1.0, task_cpus=0.5)
NODE = {"CPU": 4.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("train", "shape", "nodes", "line"),
    [
        (
            TrainConfig(workers=8),
            GPU,
            [NODE] * 3,
            "waiting for 2 of 8 workers since 2 min: the cluster has 6 of 8 GPUs; the same command with "
            "train.workers=[6,8] goes on from step 70 with as many as there are",
        ),
        (
            TrainConfig(workers=(2, 8)),
            CPU,
            [{"CPU": 1.0}],
            "waiting for 1 of 2 workers since 2 min: the cluster has 1 of 2 CPUs; the same command with "
            "train.workers=[1,8] goes on from step 70 with as many as there are",
        ),
        (
            TrainConfig(workers=2, parallel="fsdp"),
            GPU,
            [],
            "waiting for 2 of 2 workers since 2 min: the cluster has 0 of 2 GPUs",
        ),
        (
            TrainConfig(workers=4, reference_workers=8),
            GPU,
            [NODE],
            "waiting for 2 of 4 workers since 2 min: the cluster has 2 of 4 GPUs",
        ),
        (TrainConfig(workers=4), CPU, [NODE], "waiting for 4 workers since 2 min: other programs use what they need"),
        (
            TrainConfig(workers=1),
            CPU,
            [{"CPU": 0.0}],
            "waiting for 1 of 1 worker since 2 min: the cluster has 0 of 1 CPUs",
        ),
    ],
)
def test_a_wait_names_what_is_missing_and_the_settings_that_go_on_with_fewer(
    train: TrainConfig, shape: WorkerShape, nodes: list[dict[str, float]], line: str
) -> None:
    assert describe_missing(train, shape, nodes, step=70, waited_s=120) == line
