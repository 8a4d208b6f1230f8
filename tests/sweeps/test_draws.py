"""A draw that was made from results is kept, whatever those results become in a later start."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.storage.folder import Folder
from raysl.sweeps.draws import Draws
from raysl.sweeps.optuna_search import OptunaSearch
from raysl.sweeps.population import PopulationSearch
from raysl.sweeps.replay import Replay
from raysl.sweeps.schema import SweepConfig
from raysl.sweeps.search import Search
from raysl.sweeps.space import Space
from raysl.sweeps.trial import ALONE, ParentTrial, Trial
from tests.sweeps.world import World, go_through

EPOCHS = 4
SPACE = {"optim.lr": {"loguniform": [0.01, 1.0]}, "method.temperature": {"uniform": [0.1, 1.0]}}
BASES = {ALONE: load_config("quickstart", [f"train.epochs={EPOCHS}"])}


def _value(trial: Trial, epoch: int) -> float:
    return 60 + epoch - 20 * abs(trial.settings["optim.lr"] - 0.3) - 5 * trial.settings["method.temperature"]


def _optuna(folder: Path) -> Callable[[], Search]:
    sweep = SweepConfig(trials=40, space=SPACE, search="optuna", scheduler="none")
    return lambda: OptunaSearch(sweep, BASES, 0, _draws(folder))


def _population(folder: Path) -> Callable[[], Search]:
    sweep = SweepConfig(trials=8, space=SPACE, scheduler="population", interval=1, exploit=0.5)
    return lambda: PopulationSearch(sweep, BASES, 0, lambda trial: None, _draws(folder))


def _draws(folder: Path) -> Draws:
    return Draws(Folder(str(folder)), Space.of(SPACE), list(BASES))


@pytest.mark.parametrize("search", [_optuna, _population])
def test_one_failure_that_a_later_start_mends_discards_no_trial(
    tmp_path: Path, search: Callable[[Path], Callable[[], Search]]
) -> None:
    pytest.importorskip("optuna")
    world = World(_value, EPOCHS)
    second = Replay(search(tmp_path / "other")(), None, world.make, world.look)
    assert second.draw()
    assert second.draw()
    world.fails = {second.records[1].trial.name: 0}
    before = go_through(world, search(tmp_path), lambda: None, 1, random.Random(0))
    assert sum(record.failure is not None for record in before.records) >= 1
    ran = {record.trial.name for record in before.records}
    world.fails = {}
    after = go_through(world, search(tmp_path), lambda: None, 1, random.Random(0))
    assert {record.trial.name for record in after.records} == ran
    assert not any(record.failure for record in after.records)


def test_a_draw_says_what_it_was_drawn_from(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    replay = go_through(World(_value, EPOCHS), _optuna(tmp_path), lambda: None, 1, random.Random(0))
    kept = json.loads((tmp_path / "draws" / "draw_000009.json").read_text())
    assert kept["trial"]["settings"] == replay.records[9].trial.settings
    assert kept["drawn_from"] == {record.trial.name: [record.course.at(EPOCHS)] for record in replay.records[:6]}, (
        "all before it but the last `ahead` - 1"
    )


def test_a_trial_is_read_as_it_was_kept_and_its_credentials_are_not(tmp_path: Path) -> None:
    space = {
        "data.path": {"choice": ["s3://KEY:SECRET@bucket/a", "s3://KEY:SECRET@bucket/b"]},
        "optim.lr": {"uniform": [0.1, 1.0]},
        "method.sizes": {"choice": [[1, 2], [3]]},
    }

    def read() -> Draws:
        return Draws(Folder(str(tmp_path)), Space.of(space), [ALONE, "digits/moco"])

    settings = {"data.path": "s3://KEY:SECRET@bucket/b", "optim.lr": 0.1234, "method.sizes": [1, 2]}
    trial = Trial(settings, 3, "digits/moco", (ParentTrial("trial_1", 2),))
    read().keep(0, trial, {"trial_1": [0.5], "trial_2": None})
    text = (tmp_path / "draws" / "draw_000000.json").read_text()
    assert "SECRET" not in text
    assert json.loads(text)["drawn_from"] == {"trial_1": [0.5], "trial_2": None}
    assert read().at(0) == trial
    assert read().at(1) is None
    (tmp_path / "draws" / "draw_000000.json").write_text("{")
    assert read().at(0) is None, "it is drawn again"


def test_a_search_that_waits_reads_a_draw_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws, trial = _draws(tmp_path), Trial({"optim.lr": 0.1}, 0)
    assert draws.at(0) is None
    monkeypatch.setattr(Folder, "read_if_there", lambda self, name: pytest.fail(f"{name} is read again"))
    assert draws.at(0) is None
    draws.keep(0, trial, {})
    assert draws.at(0) == trial


def test_where_nothing_is_to_be_run_no_draw_is_kept(tmp_path: Path) -> None:
    draws = Draws(Folder(str(tmp_path)), Space.of(SPACE), [ALONE], may_write=lambda: False)
    draws.keep(0, Trial({"optim.lr": 0.1}, 0), {})
    assert not list(tmp_path.iterdir())
