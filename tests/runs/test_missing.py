"""The line of a run that waits for workers: what is missing, and how it goes on with fewer."""

import pytest

from raysl.cluster.resources import WorkerShape
from raysl.config.schema import TrainConfig
from raysl.runs.missing import MissingLines, describe_missing

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


def test_a_wait_says_what_the_autoscaler_does() -> None:
    line = describe_missing(TrainConfig(workers=8), GPU, [NODE], 70, 120, "the autoscaler is adding nodes")
    assert "the cluster has 2 of 8 GPUs, the autoscaler is adding nodes; the same command with" in line


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """The nodes that live, while an autoscaler adds more; the last saved step of runs/one is 70."""
    nodes: list[dict[str, float]] = []
    monkeypatch.setattr("raysl.runs.missing.node_resources", lambda: nodes)
    monkeypatch.setattr("raysl.runs.missing.growth_now", lambda: "the autoscaler is adding nodes")
    monkeypatch.setattr("raysl.runs.missing.saved_step", {"runs/one": 70}.__getitem__)
    return nodes


def test_lines_come_each_minute_while_a_run_waits_and_begin_again_with_the_next_wait(
    nodes: list[dict[str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    nodes.append({"CPU": 1.0})
    lines = MissingLines(TrainConfig(workers=2), CPU, "runs/one")
    for second in range(0, 200, 5):
        lines.poll(is_waiting=True, now=1000.0 + second)
    assert caplog.messages == [
        f"waiting for 1 of 2 workers since {since}: the cluster has 1 of 2 CPUs, the autoscaler is adding nodes; the "
        "same command with train.workers=[1,2] goes on from step 70 with as many as there are"
        for since in ("60 s", "2 min", "3 min")
    ]
    caplog.clear()
    lines.poll(is_waiting=False, now=1200.0)
    for second in range(0, 65, 5):
        lines.poll(is_waiting=True, now=1300.0 + second)
    assert len(caplog.messages) == 1


def test_a_group_that_has_room_and_only_starts_slowly_is_not_called_missing(
    nodes: list[dict[str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    nodes.append({"CPU": 4.0})
    lines = MissingLines(TrainConfig(workers=2), CPU, "runs/one")
    for second in range(0, 299, 5):
        lines.poll(is_waiting=True, now=float(second))
    assert caplog.messages == []
    lines.poll(is_waiting=True, now=300.0)
    assert caplog.messages == ["waiting for 2 workers since 5 min: other programs use what they need"]
