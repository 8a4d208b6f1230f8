"""What concurrent trials get of a cluster: always so much that each of them can go on."""

import re
from dataclasses import replace
from itertools import product

import pytest

from raysl.cluster.resources import LEAST_CPUS, TASK_CPUS, TRIAL_CPUS, Resources, worker_shape
from raysl.config.load import load_config
from raysl.config.schema import TrainConfig
from raysl.errors import ConfigError

CPUS, GPUS, TRIALS, WORKERS = range(1, 65), range(9), range(1, 17), range(1, 5)


def placed_gpus(gpus: int, share: float, num: int) -> bool:
    """Whether so many workers find places, each on one GPU."""
    free = [1.0] * gpus
    for _ in range(num):
        place = next((place for place, left in enumerate(free) if left >= share - 1e-9), None)
        if place is None:
            return False
        free[place] -= share
    return True


@pytest.mark.thorough
def test_trials_leave_cpus_to_data_tasks_drivers_and_benchmarks() -> None:
    fitting = 0
    for cpus, trials, workers in product(CPUS, TRIALS, WORKERS):
        train, cluster = TrainConfig(workers=workers, device="cpu"), Resources(cpus, 0).shared(trials)
        if workers > cpus or cluster.most_cpus(workers) < LEAST_CPUS:
            with pytest.raises(ConfigError):
                worker_shape(train, cluster)
            assert workers > cpus or cpus == 1
            continue
        shape = worker_shape(train, cluster)
        fitting += 1
        left = round(cpus - trials * (workers * shape.cpus + TRIAL_CPUS), 4)  # Ray counts in ten thousandths
        assert 0 < shape.cpus <= 1
        assert left >= shape.task_cpus > 0
        assert left >= cluster.benchmark_cpus > 0 or trials == 1
        assert cpus - trials * TRIAL_CPUS >= cluster.benchmark_cpus, "what the drivers have is never free"
        assert left >= (1 if cpus >= 2 else 0), "a benchmark's task of a whole CPU"
        if trials > 1 and cpus >= 4:
            assert left >= 1 + shape.task_cpus, "while another trial reads its images"
    assert fitting > 3900


@pytest.mark.parametrize("share", [1.0, 0.5, 0.33, 0.3, 0.25, 0.1])
def test_trials_that_are_let_in_find_a_gpu_each_and_others_are_told_how(share: float) -> None:
    for gpus, trials, workers in product(range(1, 9), TRIALS, WORKERS if share == 1 else [1]):
        train = TrainConfig(workers=workers, gpus_per_worker=share)
        cluster = Resources(64, gpus).shared(trials)
        fits = placed_gpus(gpus, share, trials * workers)
        if fits:
            assert worker_shape(train, cluster).resources["GPU"] == share
            continue
        with pytest.raises(ConfigError, match=f"never have more than {gpus}; ") as refused:
            worker_shape(train, cluster)
        if found := re.search(r"run (\d+) at a time", str(refused.value)):
            worker_shape(train, Resources(64, gpus).shared(int(found[1])))
        if found := re.search(r"set train.gpus_per_worker=([\d.]+)", str(refused.value)):
            worker_shape(replace(train, gpus_per_worker=float(found[1])), cluster)
        assert trials == 1 or workers > gpus or "run " in str(refused.value)


@pytest.mark.thorough
def test_all_cpus_and_gpus_at_once_hold_what_was_let_in() -> None:
    for cpus, gpus, trials, workers in product((1, 2, 3, 8, 64), GPUS, TRIALS, WORKERS):
        try:
            shape = worker_shape(TrainConfig(workers=workers), Resources(cpus, gpus).shared(trials))
        except ConfigError:
            continue
        assert shape.device == ("cuda" if gpus else "cpu")
        assert trials * workers <= gpus or not gpus
        assert trials * workers * shape.cpus + trials * TRIAL_CPUS + min(TASK_CPUS, shape.task_cpus) <= cpus


@pytest.mark.parametrize(
    ("train", "cluster", "told"),
    [
        (
            TrainConfig(cpus_per_worker=1),
            Resources(8, 0).shared(8),
            "8 trials at a time of 1 worker of 1 CPUs leave no CPU for data tasks: this cluster can never have more "
            "than 8; set train.cpus_per_worker=0.8, or run 6 at a time",
        ),
        (
            TrainConfig(workers=4, cpus_per_worker=0.01),
            Resources(1, 0).shared(16),
            "16 trials at a time of 4 workers do not fit the 1 CPUs that this cluster can ever have beside data tasks; "
            "run 10 at a time",
        ),
        (
            TrainConfig(),
            Resources(16, 2).shared(3),
            "3 trials at a time of 1 worker need a GPU each, and this cluster can never have more than 2; run 2 at a "
            "time, or set train.gpus_per_worker=0.5",
        ),
        (
            TrainConfig(gpus_per_worker=0.6),
            Resources(16, 1).shared(2),
            "2 trials at a time of 1 worker need 0.6 of a GPU each, and this cluster can never have more than 1; run 1 "
            "at a time, or set train.gpus_per_worker=0.5",
        ),
    ],
)
def test_more_trials_than_fit_are_refused_with_what_to_set(train: TrainConfig, cluster: Resources, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        worker_shape(train, cluster)
    assert str(refused.value) == told


def test_a_share_of_a_gpu_is_for_one_worker() -> None:
    with pytest.raises(ConfigError, match=r"train: gpus_per_worker=0\.5 with 2 workers: NCCL allows one rank per GPU"):
        load_config("quickstart", ["train.workers=2", "train.gpus_per_worker=0.5"])
    for words in (["train.gpus_per_worker=2"], ["train.gpus_per_worker=0"]):
        with pytest.raises(ConfigError, match=r"train\.gpus_per_worker"):
            load_config("quickstart", words)
    own = load_config("quickstart", ["train.gpus_per_worker=0.25"]).train
    assert worker_shape(own, Resources(8, 1)).resources == {"CPU": 1.0, "GPU": 0.25}
    assert worker_shape(own, Resources(8, 0)).resources == {"CPU": 1.0}
