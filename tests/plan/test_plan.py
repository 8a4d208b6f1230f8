"""What settings come to on a number of ranks."""

from dataclasses import replace

import numpy as np
import pytest

from raysl.cluster.resources import Resources, worker_shape
from raysl.config.load import load_config
from raysl.config.schema import TrainConfig
from raysl.data.order import Order
from raysl.data.split import runs
from raysl.errors import ConfigError
from raysl.methods.shared.setup_checks import check_batch
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.train.expected import end_warning


def _plan(world: int, batch: int = 96, *overrides: str) -> TrainPlan:
    config = load_config("quickstart", [f"train.batch_size={batch}", "train.epochs=4", *overrides])
    return TrainPlan.from_config(config, num_samples=1000, world=world)


def test_a_setup_takes_numbers_of_numpy() -> None:
    setup = Setup.of(load_config("quickstart"), np.int64(1442), np.uint8(10))
    assert setup == Setup.of(load_config("quickstart"), 1442, 10)
    assert {type(setup.data.num_samples), type(setup.data.num_classes)} == {int}


def test_steps_and_rows() -> None:
    plan = _plan(2)
    assert (plan.epoch_len, plan.total_steps, plan.lanes) == (10, 40, 64)
    assert plan.rows == [48, 48]
    assert _plan(3).rows == [31, 32, 33]  # 64 lanes among three
    assert _plan(3, 96, "data.lanes=48").rows == [32, 32, 32]


@pytest.mark.parametrize(("end", "total"), [("25st", 25), ("2ep", 20), ("50%", 20), ("900st", 40)])
def test_a_run_ends_at_its_last_update_or_with_its_epochs(end: str, total: int) -> None:
    plan = _plan(1, 96, f"train.end={end}")
    assert (plan.epoch_len, plan.total_steps) == (10, total)
    assert plan.step(total).progress == 1


def test_an_end_behind_the_epochs_is_told() -> None:
    warnings = {}
    for end in ("40st", "41st", "5ep"):
        plan, train = _plan(1, 96, f"train.end={end}"), load_config("quickstart", [f"train.end={end}"]).train
        warnings[end] = end_warning(replace(train, epochs=4), plan)
    assert warnings["40st"] is None
    assert warnings["41st"] == "train.end=41st is after the 40 updates of train.epochs=4, which end the run"
    assert warnings["5ep"] is not None


def test_shares_of_a_step_are_the_rows_that_the_order_deals_out() -> None:
    for world in (1, 2, 3):
        plan = _plan(world, 96, "data.drop_last=false")
        for is_exact in (True, False):
            order = Order(0, "x", runs(1000, 100), 96, plan.lanes, window=10, is_exact=is_exact, drop_last=False)
            for step in (0, 9, 10, 11):
                dealt = [len(order.batch(step, rank, world)) for rank in range(world)]
                assert plan.shares(plan.step(step)) == dealt


def test_weights_make_the_mean_over_ranks_that_over_the_batch() -> None:
    plan = _plan(3)
    assert sum(plan.weight(rows, plan.step(0)) for rows in plan.rows) / 3 == pytest.approx(1.0)


def test_the_rest_of_an_epoch_is_a_smaller_batch_where_it_is_kept() -> None:
    plan = _plan(2, 96, "data.drop_last=false")
    assert (plan.epoch_len, plan.total_steps) == (11, 44)
    assert [plan.batch_rows(plan.step(step)) for step in (9, 10, 11, 21)] == [96, 40, 96, 40]
    assert plan.weight(20, plan.step(10)) == 1.0
    with pytest.raises(ConfigError, match=r"the last batch of an epoch has 1 of 1000 images, fewer than 2"):
        _plan(1, 999, "data.drop_last=false")


@pytest.mark.parametrize(
    ("world", "batch", "message"),
    [
        (8, 100, r"batch 100 is not divisible by 8 workers; try train.batch_size=96 or 104"),
        (3, 96, r"64 lanes of a batch of 96 are not shared evenly by 3 workers; try data.lanes=63"),
    ],
)
def test_uneven_ranks_are_refused_with_a_way_out(world: int, batch: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _plan(world, batch).check_even()


def test_the_way_out_of_uneven_lanes_is_one() -> None:
    for world in (3, 5, 6, 7):
        batch = 96 * world
        with pytest.raises(ConfigError, match=r"data\.lanes=(\d+)") as error:
            _plan(world, batch).check_even()
        lanes = str(error.value).split("data.lanes=")[1].split(",")[0]
        _plan(world, batch, f"data.lanes={lanes}").check_even()


def test_too_few_images_and_too_many_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"of 2000; set train\.batch_size=256, or another of at most 1000"):
        _plan(1, 2000)
    with pytest.raises(ConfigError, match="65 workers are more than the 64 lanes"):
        _plan(65, 130)


def test_workers_leave_cpus_to_data_tasks() -> None:
    train = TrainConfig()
    for cpus in (1, 2, 4, 64):
        for workers in range(1, min(cpus, 8) + 1):
            shape = worker_shape(replace(train, workers=workers), Resources(cpus, 0))
            assert 0 < shape.cpus <= 1
            assert workers * shape.cpus + shape.task_cpus < cpus
    assert worker_shape(train, Resources(8, 2)).resources == {"CPU": 1.0, "GPU": 1.0}


def test_workers_that_no_node_can_hold_are_refused() -> None:
    train = TrainConfig(workers=9)
    with pytest.raises(ConfigError, match="9 workers are more than the 2 CPUs that this cluster can ever have"):
        worker_shape(train, Resources(2, 0))
    with pytest.raises(ConfigError, match=r"never have more than 4; set train\.workers=4"):
        worker_shape(train, Resources(64, 4))
    with pytest.raises(ConfigError, match=r"set train\.device=cpu"):
        worker_shape(replace(train, device="cuda"), Resources(64, 0))
    with pytest.raises(ConfigError, match=r"set train.cpus_per_worker=0\.1"):
        worker_shape(replace(train, cpus_per_worker=0.5), Resources(2, 0))


def test_small_batches_of_methods_that_compare_images_come_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for batch_size in (8, 16):
        config = load_config("quickstart", [f"train.batch_size={batch_size}"])
        check_batch(Setup.of(config, 100, 10), "SimCLR contrasts images")
    assert caplog.messages == ["train.batch_size=8 is small for simclr: SimCLR contrasts images; better 256"]
