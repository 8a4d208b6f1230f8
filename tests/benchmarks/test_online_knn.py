"""The kNN that is measured while training goes on."""

import pytest

from raysl.benchmarks.online_knn import OnlineKNN
from raysl.config.load import load_config
from raysl.data.order import Order
from raysl.data.sources.digits import Digits
from raysl.data.stream.loader import Loader
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Run
from raysl.train.state import TrainState
from raysl.transforms.view_recipe import evaluation_recipe
from tests.rank_processes import RunRanks

SETTINGS = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")


def measured(num_train: int, num_test: int) -> dict[str, float]:
    """What the callback logs at the end of an epoch on so many digits."""
    config = load_config("quickstart", [*SETTINGS, "train.batch_size=8"])
    source = Digits(Digits.Config(limit=num_train))
    train, test = source.required("train"), Digits(Digits.Config(limit=num_test)).required("test")
    recipe = evaluation_recipe(16, 16)
    order = Order(seed=0, fingerprint="", unit_sizes=train.unit_sizes, batch_size=1, lanes=1, window=8, is_exact=True)
    loader = Loader(train, recipe, order, config.data.mean, config.data.std, False, recipe)
    state = TrainState.create(Setup.of(config, 64, 10))
    run = Run(state, TrainPlan.from_config(config, 64))
    online = OnlineKNN(loader, test, 10, Duration.parse("1ep"))
    online.on_train_start(run)
    untrained = dict(run.line)
    online.on_epoch_end(run, Step(8, 8, 8))
    assert run.line == untrained
    return untrained


def measured_each(*sizes: tuple[int, int]) -> list[float]:
    return [measured(num_train, num_test)["knn_top1"] for num_train, num_test in sizes]


def test_ranks_without_images_change_nothing(run_ranks: RunRanks) -> None:
    sizes = ((40, 2), (2, 5))
    alone = measured_each(*sizes)
    assert all(0 <= accuracy <= 100 for accuracy in alone)
    for accuracies in run_ranks(3, measured_each, *sizes):
        assert accuracies == pytest.approx(alone)
