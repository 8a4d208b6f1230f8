"""A run keeps the order of samples that it began with."""

import json
from pathlib import Path

import pytest

from raysl.checkpoint.checkpoint_folder import checkpoint_name, seal
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.order import Order
from raysl.errors import ConfigError
from raysl.runs.begin import begin
from raysl.runs.folder import RunFolder
from raysl.runs.fork import fork
from raysl.train.prepare import Prepared, continued, prepare
from raysl.train.state import TrainState
from tests.runs.runs import SMALL

STEP = 3
IMAGES = ("data=synthetic", "data.num_train=2048", "data.unit_rows=16", "data.is_random_access=false")


def config_of(storage: Path, *words: str) -> RunConfig:
    images = ("data.limit=null", "data.image_size=8", "train.batch_size=128", *IMAGES)
    return load_config("quickstart", [*SMALL, *images, f"storage={storage}", "name=one", *words])


def start(config: RunConfig) -> Prepared:
    """A start of a run, as far as its order is known."""
    run, folder = prepare(config), RunFolder.of(config)
    folder.make()
    return continued(run, begin(run, folder))


def begun(config: RunConfig, step: int = STEP) -> Path:
    """The checkpoint of a run that was cut off."""
    state = TrainState.create(start(config).setup)
    state.step = step
    checkpoint = Path(RunFolder.of(config).path) / checkpoint_name(step)
    state.save(checkpoint, {})
    return checkpoint


def change(checkpoint: Path, order: dict[str, int]) -> None:
    """Have a checkpoint store another order."""
    meta = json.loads((checkpoint / "meta.json").read_text())
    kept = {key: value for key, value in meta.items() if key not in ("format", "files", "order")}
    seal(checkpoint, kept | {"order": order})


@pytest.mark.thorough
def test_a_new_run_has_the_order_of_today_and_stores_it(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    meta = json.loads((begun(config) / "meta.json").read_text())
    assert meta["order"] == {"version": 2, "lanes": 32}, "128 units are four for each of 32 lanes"
    order = start(config).loader.order
    assert (type(order), order.lanes, order.is_exact) == (Order, 32, False)


@pytest.mark.thorough
def test_lanes_are_those_of_the_first_start_at_any_number_of_workers(tmp_path: Path) -> None:
    config = config_of(tmp_path, "data.num_train=512", "train.workers=32")
    change(begun(config), {"version": 2, "lanes": 32})
    alone = start(config_of(tmp_path, "data.num_train=512", "train.workers=1"))
    assert (alone.setup.plan.world, alone.loader.order.lanes) == (1, 32)
    with pytest.raises(ConfigError, match=r"64 workers are more than the 32 lanes with which the run 'one' began; set"):
        start(config_of(tmp_path, "data.num_train=512", "train.workers=64"))


@pytest.mark.thorough
@pytest.mark.parametrize("version", [1, 3])
def test_another_version_of_the_order_is_refused(tmp_path: Path, version: int) -> None:
    config = config_of(tmp_path)
    change(begun(config), {"version": version, "lanes": 32})
    with pytest.raises(ConfigError, match=rf"has version {version} of the order of samples, and this raysl has"):
        start(config)


@pytest.mark.thorough
def test_a_fork_goes_on_with_the_lanes_of_its_parent(tmp_path: Path) -> None:
    checkpoint = begun(config_of(tmp_path))
    change(checkpoint, {"version": 2, "lanes": 64})
    child = config_of(tmp_path, "name=child", "optim.lr=0.1")
    fork(child, str(checkpoint))
    assert start(child).setup.plan.stored_order == {"version": 2, "lanes": 64}
