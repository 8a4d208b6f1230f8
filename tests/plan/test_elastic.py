"""A run whose number of workers is a range: what its settings mean, and that each size has the same batches."""

from pathlib import Path

import numpy as np
import pytest

from raysl.cluster.resources import Resources, most_trials, worker_shape
from raysl.config.build import from_dict
from raysl.config.dump import to_dict
from raysl.config.load import load_config
from raysl.config.schema import TrainConfig
from raysl.data.order import Order
from raysl.data.split import runs
from raysl.errors import ConfigError
from raysl.plan.plan import TrainPlan
from raysl.train.prepare import prepare


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[8, 2]", r"train\.workers: \[8, 2\] holds no number: 8 is above 2; write \[2, 8\]"),
        ("[2, 2]", r"train\.workers: \[2, 2\] is one number; write 2, or \[low, high\] with low < high"),
        ("[0, 2]", r"train\.workers\[0\]: 0 is out of range; give a number in \[1, 65536\]"),
        ("[1, 2, 3]", r"train\.workers: \[1, 2, 3\] has 3 values; it needs 2"),
        ("[1, two]", r"train\.workers\[1\]: 'two' is not of type int; write a whole number"),
        ("many", r"train\.workers: 'many' is not of type int or list of 2; write a whole number or \[a, b\]"),
        ("0", r"train\.workers: 0 is out of range; give a number in \[1, 65536\]"),
    ],
)
def test_a_number_of_workers_that_is_no_range_is_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        load_config("quickstart", [f"train.workers={value}"])


def test_a_range_of_workers_comes_from_a_file_or_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: quickstart\ntrain:\n  workers: [2, 8]\n")
    for config in (load_config(tmp_path / "mine.yaml"), load_config("quickstart", ["train.workers=[2, 8]"])):
        train = config.train
        assert (train.workers, train.least_workers, train.most_workers, train.is_elastic) == ((2, 8), 2, 8, True)
        assert train.is_uneven_allowed
        assert from_dict(to_dict(config)) == config
    fixed = load_config(tmp_path / "mine.yaml", ["train.workers=4"]).train
    assert (fixed.least_workers, fixed.most_workers, fixed.is_elastic) == (4, 4, False)


def test_a_range_of_workers_and_a_batch_that_follows_their_number_are_refused_together() -> None:
    with pytest.raises(ConfigError, match=r"workers=\[2, 8\] keeps the batch .* leave one of the two out"):
        load_config("quickstart", ["train.workers=[2,8]", "train.reference_workers=4"])


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_group_that_shrinks_and_grows_inside_an_epoch_goes_on_with_the_same_global_batches(is_exact: bool) -> None:
    config = load_config("quickstart", ["train.batch_size=96", "train.workers=[2,5]"])
    plan = TrainPlan.from_config(config, num_samples=1000)
    order = Order(0, "x", runs(1000, 100), 96, plan.lanes, window=10, is_exact=is_exact, drop_last=True)
    calm = [order.batch(step) for step in range(20)]
    sizes = [5] * 7 + [4] * 6 + [2] * 2 + [5] * 5
    for step, world in enumerate(sizes):
        shares = [order.batch(step, rank, world) for rank in range(world)]
        assert np.array_equal(np.concatenate(shares), calm[step])
        plan_there = TrainPlan.from_config(config, 1000, world)
        assert list(map(len, shares)) == plan_there.shares(plan_there.step(step))


def test_every_size_of_a_range_is_checked_before_a_worker_starts() -> None:
    settings = ["train.batch_size=128", "data.limit=500", "train.epochs=1", "benchmarks=[]"]
    with pytest.raises(ConfigError, match="65 workers are more than the 64 lanes"):
        prepare(load_config("quickstart", [*settings, "train.workers=[1,65]"]))
    with pytest.raises(ConfigError, match=r"leaves 0 image.* to one of 40 worker"):
        prepare(load_config("quickstart", [*settings, "train.workers=[1,40]", "train.accumulate=2"]))
    plan = prepare(load_config("quickstart", [*settings, "train.workers=[1,3]"])).setup.plan
    assert plan.rows == [42, 42, 44], "uneven rows need no train.uneven"


@pytest.mark.thorough
def test_memory_that_is_shared_between_workers_needs_two_at_any_time() -> None:
    settings = ["train.parallel=zero1", "data.limit=500", "benchmarks=[]"]
    with pytest.raises(ConfigError, match=r"and there may be 1; set train\.workers=2 or more"):
        prepare(load_config("quickstart", [*settings, "train.workers=[1,4]"]))
    prepare(load_config("quickstart", [*settings, "train.workers=[2,4]"]))


def test_resources_are_planned_for_as_many_workers_of_a_range_as_a_cluster_can_hold() -> None:
    def planned(workers: int | tuple[int, int], cluster: Resources) -> dict[str, float]:
        return worker_shape(TrainConfig(workers=workers), cluster).resources

    assert planned((2, 8), Resources(4, 0)) == planned(4, Resources(4, 0))
    assert planned((2, 8), Resources(64, 0)) == planned(8, Resources(64, 0))
    assert planned((2, 8), Resources(64, 3)) == planned(3, Resources(64, 3))
    with pytest.raises(ConfigError, match="2 workers need as many GPUs, and this cluster can never have more than 1"):
        planned((2, 8), Resources(64, 1))
    with pytest.raises(ConfigError, match="8 workers are more than the 4 CPUs"):
        planned((8, 16), Resources(4, 0))
    fixed, elastic = (TrainConfig(workers=workers, cpus_per_worker=1.2) for workers in (1, (1, 2)))
    with pytest.raises(ConfigError, match="leave no CPU for data tasks"):
        worker_shape(fixed, Resources(2, 0))
    assert worker_shape(elastic, Resources(2, 0)).cpus == 1.2, "as after the loss of a node"
    assert most_trials(TrainConfig(workers=(2, 4)), Resources(64, 8)) == 2
