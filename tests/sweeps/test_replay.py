"""A sweep that was killed, or that had another number of trials at a time, ends with the same table."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from raysl.config.load import load_config
from raysl.sweeps.judging import Course, Judge, Verdict
from raysl.sweeps.optuna_search import OptunaSearch
from raysl.sweeps.population import PopulationSearch
from raysl.sweeps.record import Note, Record
from raysl.sweeps.replay import Replay
from raysl.sweeps.schedulers import judge_of
from raysl.sweeps.schema import SweepConfig
from raysl.sweeps.search import RandomSearch, Search
from raysl.sweeps.trial import ALONE, Trial
from tests.sweeps.world import World, ends, go_through

EPOCHS = 9
SPACE = {"optim.lr": {"loguniform": [0.01, 1.0]}, "method.temperature": {"choice": [0.2, 0.5, 1.0]}}
BASES = {ALONE: load_config("quickstart", [f"train.epochs={EPOCHS}"])}


def _value(trial: Trial, epoch: int) -> float:
    """Better with a learning rate near 0.3, and with noise that another epoch has otherwise."""
    lr, temperature = trial.settings["optim.lr"], trial.settings["method.temperature"]
    noise = random.Random(f"{trial.name} {epoch}").uniform(-4, 4)
    return 60 + epoch - 20 * abs(lr - 0.3) - 5 * temperature + noise


class _Hasty(random.Random):
    """Has the trial that started last get on, so that it comes to its end before others do."""

    def choice(self, seq):  # type: ignore[no-untyped-def,override]
        return seq[-1] if self.random() < 0.97 else super().choice(seq)


def _judges(sweep: SweepConfig) -> Judge | None:
    return judge_of(sweep, EPOCHS)


def _search(sweep: SweepConfig) -> Callable[[], Search]:
    if sweep.scheduler == "population":
        return lambda: PopulationSearch(sweep, BASES, 0, lambda trial: None)
    kind = OptunaSearch if sweep.search == "optuna" else RandomSearch
    return lambda: kind(sweep, BASES, 0)


@pytest.mark.parametrize(
    "sweep",
    [
        SweepConfig(trials=20, space=SPACE, scheduler="asha"),
        SweepConfig(trials=20, space=SPACE, scheduler="hyperband"),
        SweepConfig(trials=12, space=SPACE, scheduler="median"),
        SweepConfig(trials=8, space=SPACE, scheduler="none", seeds=2),
        SweepConfig(trials=12, space=SPACE, scheduler="asha", seeds=3),
        SweepConfig(trials=20, space=SPACE, scheduler="asha", variant="promotion"),
        SweepConfig(trials=20, space=SPACE, scheduler="hyperband", variant="promotion"),
        SweepConfig(trials=12, space=SPACE, scheduler="asha", variant="promotion", seeds=3),
        SweepConfig(trials=10, space=SPACE, scheduler="none", search="optuna"),
        SweepConfig(trials=16, space=SPACE, scheduler="asha", search="optuna", ahead=4),
        SweepConfig(trials=8, space=SPACE, scheduler="population", interval=2),
    ],
    ids=[
        "asha",
        "hyperband",
        "median",
        "seeds",
        "asha-seeds",
        "promotion",
        "hyperband-promotion",
        "promotion-seeds",
        "optuna",
        "optuna-asha",
        "population",
    ],
)
def test_the_table_depends_neither_on_the_order_of_results_nor_on_kills(sweep: SweepConfig) -> None:
    pytest.importorskip("optuna")
    tables = []
    for turn in range(10):
        chance = random.Random(turn) if turn < 5 else _Hasty(turn)
        world = World(_value, EPOCHS)
        replay = go_through(
            world, _search(sweep), lambda: _judges(sweep), concurrent=1 + turn % 5, chance=chance, kills=3 * turn
        )
        tables.append(ends(replay))
    assert all(table == tables[0] for table in tables[1:])
    if sweep.scheduler in ("asha", "hyperband", "median"):
        assert {status for _, status, *_ in tables[0]} == {"finished", "stopped"}


def test_one_trial_after_the_other_is_plain_successive_halving() -> None:
    sweep = SweepConfig(trials=12, space=SPACE, scheduler="asha")
    replay = go_through(World(_value, EPOCHS), _search(sweep), lambda: _judges(sweep), 1, random.Random(0))
    there: dict[float, list[float]] = {1.0: [], 3.0: []}
    for record, (_, status, epoch, _) in zip(replay.records, ends(replay), strict=True):
        for rung, values in there.items():
            values.append(_value(record.trial, int(rung)))
            is_best = sorted(values, reverse=True).index(values[-1]) < -(-len(values) // 3)
            if not is_best:
                assert (status, epoch) == ("stopped", rung)
                break
        else:
            assert (status, epoch) == ("finished", float(EPOCHS))


def test_a_trial_that_fails_is_passed_and_the_others_go_on() -> None:
    sweep = SweepConfig(trials=6, space=SPACE, scheduler="asha")
    first = RandomSearch(sweep, BASES, 0).next([], lambda index: None)
    assert isinstance(first, Trial)
    tables = []
    for turn in range(4):
        world = World(_value, EPOCHS, fails={first.name: 2})
        replay = go_through(world, _search(sweep), lambda: _judges(sweep), 1 + turn, random.Random(turn))
        tables.append(ends(replay))
    assert all(table == tables[0] for table in tables)
    statuses = [status for _, status, *_ in tables[0]]
    assert statuses.count("failed") == 1
    assert "finished" in statuses


class _Kept(RandomSearch):
    """Draws some of a search's trials alone."""

    def __init__(self, sweep: SweepConfig, names: set[str]) -> None:
        super().__init__(sweep, BASES, 0)
        self.firsts = (trial for trial in self._first_seeds() if trial.name in names)


def _names(sweep: SweepConfig) -> list[str]:
    search = RandomSearch(sweep, BASES, 0)
    drawn = [search.next([], lambda index: None) for _ in range(search.num_trials())]
    return [trial.name for trial in drawn if isinstance(trial, Trial)]


@pytest.mark.parametrize("variant", ["stopping", "promotion"])
def test_trials_that_lead_and_then_diverge_knock_out_nobody(variant: str) -> None:
    space = {"optim.lr": {"grid": [0.9, 0.8, 0.7, 0.3, 0.2, 0.1]}}
    sweep = SweepConfig(space=space, scheduler="asha", variant=variant)
    fails = dict.fromkeys(_names(sweep)[:3], 2)
    tables = []
    for turn in range(12):
        world = World(lambda trial, epoch: trial.settings["optim.lr"] * 100 - epoch, EPOCHS, fails)
        chance = random.Random(turn) if turn % 2 else _Hasty(turn)
        replay = go_through(world, _search(sweep), lambda: _judges(sweep), 1 + turn % 4, chance, kills=turn)
        tables.append(ends(replay))
    assert all(table == tables[0] for table in tables)
    statuses = [status for _, status, *_ in tables[0]]
    assert statuses == ["failed"] * 3 + ["finished"] + ["stopped"] * 2


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median"])
@pytest.mark.parametrize("variant", ["stopping", "promotion"])
def test_what_fails_changes_nothing_for_those_that_do_not(scheduler: str, variant: str) -> None:
    """Many fail at any epoch, some of them behind the epoch at which they are stopped."""
    sweep = SweepConfig(trials=24, space=SPACE, scheduler=scheduler, variant=variant, min_samples=2)
    draw = random.Random(3)
    fails = {name: draw.randint(0, EPOCHS - 1) for name in _names(sweep) if draw.random() < 0.4}
    tables = []
    for turn in range(20):
        world = World(_value, EPOCHS, fails)
        chance = random.Random(turn) if turn % 2 else _Hasty(turn)
        replay = go_through(world, _search(sweep), lambda: _judges(sweep), 1 + turn % 6, chance, kills=turn)
        tables.append(ends(replay))
    assert all(table == tables[0] for table in tables)
    assert {status for _, status, *_ in tables[0]} == {"finished", "stopped", "failed"}
    if variant == "stopping" and scheduler != "hyperband":  # whose brackets are dealt by place
        sound = [row for row in tables[0] if row[1] != "failed"]
        kept = _Kept(sweep, {name for name, *_ in sound})
        alone = go_through(World(_value, EPOCHS, fails), lambda: kept, lambda: _judges(sweep), 1, random.Random(0))
        assert ends(alone) == sound


def test_optuna_is_told_the_number_that_a_stopped_trial_had_then_however_far_it_came() -> None:
    pytest.importorskip("optuna")
    sweep = SweepConfig(trials=4, space=SPACE, search="optuna")
    search = OptunaSearch(sweep, BASES, 0)
    trial = search.next([], lambda index: None)
    assert isinstance(trial, Trial)
    record = Record(
        trial, EPOCHS, Course([1.0, 9.0], [50.0, 80.0]), note=Note("finished", 9, 9.0, {"knn_k20_top1": 80.0})
    )
    assert search._frozen(record).values == [80.0]
    record.verdict = Verdict(1.0, "behind the others")
    assert search._frozen(record).values == [50.0]


@pytest.mark.parametrize("kind", ["qrandint", "quniform", "qlograndint"])
def test_optuna_draws_multiples_of_a_step_between_ends_that_are_none(kind: str) -> None:
    pytest.importorskip("optuna")
    sweep = SweepConfig(
        trials=20, space={"method.queue": {kind: [1, 10, 4]}}, search="optuna", scheduler="none", ahead=1
    )
    world = World(lambda trial, epoch: float(trial.settings["method.queue"]), EPOCHS)
    replay = go_through(world, _search(sweep), lambda: None, 1, random.Random(0))
    assert {record.trial.settings["method.queue"] for record in replay.records} == {4, 8}


def test_further_seeds_of_what_came_to_its_end_are_not_judged() -> None:
    sweep = SweepConfig(trials=12, space=SPACE, scheduler="asha", seeds=3)
    replay = go_through(World(_value, EPOCHS), _search(sweep), lambda: _judges(sweep), 3, random.Random(0))
    rows = ends(replay)
    kept = sum(status == "finished" for _, status, *_ in rows[:12])
    assert 0 < kept < 12
    assert [status for _, status, *_ in rows[12:]] == ["finished"] * 2 * kept


def test_members_of_a_population_with_equal_settings_are_two() -> None:
    sweep = SweepConfig(
        trials=6, space={"optim.lr": {"choice": [0.1, 0.2]}}, scheduler="population", interval=3, exploit=0.5
    )
    world = World(lambda trial, epoch: random.Random(f"{trial.name} {epoch}").uniform(0, 1), EPOCHS)
    replay = go_through(world, _search(sweep), lambda: None, 2, random.Random(0))
    assert len({record.trial.name for record in replay.records if record.trial.until == 3}) == 6
    whole = [record for record in replay.records if record.trial.until is None]
    assert len(whole) == 6, "nobody is stopped by what replaced another one"
    assert all(record.verdict is None and record.course.reached == EPOCHS for record in whole)


def test_equal_draws_are_one_trial() -> None:
    sweep = SweepConfig(trials=30, space={"method.temperature": {"choice": [0.2, 0.5]}}, scheduler="none")
    world = World(lambda trial, epoch: 1.0, EPOCHS)
    replay = go_through(world, _search(sweep), lambda: None, 3, random.Random(0))
    assert len(replay.records) == 2
    assert sum(record.draws for record in replay.records) == 30


def test_a_sweep_that_has_ended_gives_nothing_to_run() -> None:
    sweep = SweepConfig(trials=5, space=SPACE, scheduler="asha")
    world = World(_value, EPOCHS)
    before = ends(go_through(world, _search(sweep), lambda: _judges(sweep), 2, random.Random(0)))
    again = go_through(world, _search(sweep), lambda: _judges(sweep), 2, random.Random(1))
    assert ends(again) == before
    grown = replace(sweep, trials=8)
    more = go_through(world, _search(grown), lambda: _judges(grown), 2, random.Random(2))
    assert ends(more)[:5] == before, "further trials change nothing of the first ones"
    assert len(more.records) == 8


def test_a_trial_that_was_looked_at_and_not_started_is_still_the_next_one() -> None:
    sweep = SweepConfig(trials=4, space=SPACE, scheduler="asha")
    world = World(_value, EPOCHS)
    replay = Replay(_search(sweep)(), _judges(sweep), world.make, world.look)
    first = replay.next()
    assert first is not None
    assert replay.next() is first
    first.is_running = True
    second = replay.next()
    assert second is not None
    assert [record.trial.name for record in replay.records] == [first.trial.name, second.trial.name]
