"""The average of the weights: by its formula, through restarts, at other numbers of ranks, and where it is exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.checkpoint.backbone import load_backbone
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.nn.average import WeightAverage
from raysl.schedule import Duration, Step
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.state import TrainState
from tests.rank_processes import RunRanks
from tests.train.problem import StopAt, batches, differing, problem, tensors_of

EMA = "train.ema=0.75"
NOW = "train.ema_warmup=0st"


class Weights(Callback):
    """Takes all that could be averaged after each update."""

    def __init__(self) -> None:
        self.found: list[dict[str, Tensor]] = []

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.found.append({name: value.clone() for name, value in run.state.method.state_dict().items()})


def train(folder: Path, *overrides: str, until: int | None = None) -> tuple[TrainState, list[dict[str, Tensor]]]:
    """A run in a folder, from its newest checkpoint there, and its weights from the first on."""
    state, plan = problem(*overrides)
    reporter = LocalReporter(folder, keep=9)
    if (restored := reporter.restore()) is not None:
        state.load(restored)
    seen = Weights()
    seen.found.append({name: value.clone() for name, value in state.method.state_dict().items()})
    stops = [] if until is None else [StopAt(until)]
    fit(state, dist.data_parallel(state.method), plan, batches(plan), callbacks=[seen, *stops], reporter=reporter)
    return state, seen.found


def averages(state: TrainState) -> dict[str, Tensor]:
    assert state.average is not None
    return {name: value.clone() for name, value in state.average.state_dict().items()}


def expected(seen: list[dict[str, Tensor]], every: int = 1, num_warmup: int = 0) -> dict[str, Tensor]:
    """The average in float64, by its definition."""
    average = {name: value.double() for name, value in seen[0].items() if value.is_floating_point()}
    for index, weights in enumerate(seen[1:]):
        if (index + 1) % every == 0:
            share = 0.0 if index < num_warmup else 0.75
            average = {name: share * value + (1 - share) * weights[name].double() for name, value in average.items()}
    return average


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "every", "num_warmup"),
    [((NOW,), 1, 0), (("train.ema_every=2", NOW), 2, 0), (("train.ema_warmup=3st",), 1, 3)],
)
def test_it_follows_parameters_and_statistics(
    words: tuple[str, ...], every: int, num_warmup: int, tmp_path: Path
) -> None:
    state, seen = train(tmp_path, EMA, *words)
    found, wanted = averages(state), expected(seen, every, num_warmup)
    assert found.keys() == wanted.keys()
    assert any("running_var" in name for name in found)
    for name, value in found.items():
        torch.testing.assert_close(value.double(), wanted[name], rtol=1e-5, atol=1e-6)
    assert any(not torch.allclose(value, state.method.state_dict()[name], rtol=1e-3) for name, value in found.items())


@pytest.mark.thorough
def test_in_the_warm_up_it_is_a_copy(tmp_path: Path) -> None:
    state, _ = train(tmp_path, EMA, "train.ema_warmup=100%")
    weights = state.method.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in averages(state).items())


@pytest.mark.thorough
def test_it_changes_nothing_in_training(tmp_path: Path) -> None:
    plain, _ = train(tmp_path / "plain")
    averaged, _ = train(tmp_path / "averaged", EMA, NOW, "train.ema_export=true", "train.checkpoint_every=1st")
    assert differing(tensors_of(plain), tensors_of(averaged)) == []
    assert plain.average is None


@pytest.mark.thorough
def test_a_restart_goes_on_with_it_to_the_bit(tmp_path: Path) -> None:
    words = (EMA, "train.ema_every=2", "train.ema_warmup=2st")
    whole, _ = train(tmp_path / "whole", *words)
    train(tmp_path / "stopped", *words, until=3)
    resumed, _ = train(tmp_path / "stopped", *words)
    assert resumed.step == whole.step == 8
    assert differing(averages(whole), averages(resumed)) == []


def exported(folder: Path, state: TrainState) -> dict[str, Tensor]:
    return load_backbone(str(folder / checkpoint_name(state.step))).state_dict()


@pytest.mark.thorough
@pytest.mark.parametrize("buffers", ["average", "copy"])
def test_the_exported_backbone_is_the_averaged_one_where_that_is_asked_for(tmp_path: Path, buffers: str) -> None:
    words = (EMA, NOW, f"train.ema_buffers={buffers}")
    plain, _ = train(tmp_path / "plain", *words)
    averaged, _ = train(tmp_path / "averaged", *words, "train.ema_export=true")
    mine = exported(tmp_path / "averaged", averaged)
    average, own = averages(averaged), averaged.method.backbone.state_dict()
    kept = [name for name in mine if f"backbone.{name}" not in average]
    assert all(torch.equal(mine[name], average[f"backbone.{name}"]) for name in mine if name not in kept)
    assert all(torch.equal(mine[name], own[name]) for name in kept)
    assert any("running_mean" in name for name in kept) == (buffers == "copy")
    assert differing(exported(tmp_path / "plain", plain), plain.method.backbone.state_dict()) == []
    assert differing(mine, own) != []


def test_a_part_of_the_network_has_its_averages_and_training_has_its_weights() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = WeightAverage(network, 0.5, with_buffers=False)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with torch.no_grad():
        network[0].weight.add_(1)
        network[1].running_mean.add_(1)
    average.update(network, Step(0, 10, 10))
    (state, norm) = (average.averaged_state(network, part) for part in network)
    torch.testing.assert_close(state["weight"], before["0.weight"] + 0.5)
    assert torch.equal(state["bias"], before["0.bias"])
    assert torch.equal(norm["running_mean"], network[1].running_mean)
    assert torch.equal(network[0].weight, before["0.weight"] + 1)
    average.load_into(network)
    torch.testing.assert_close(network[0].weight, before["0.weight"] + 0.5)


def test_buffers_that_are_not_saved_or_counts_are_not_averaged() -> None:
    network = nn.BatchNorm1d(2)
    network.register_buffer("scratch", torch.ones(3), persistent=False)
    assert set(WeightAverage(network, 0.5).values) == {"weight", "bias", "running_mean", "running_var"}
    assert set(WeightAverage(network, 0.5, with_buffers=False).values) == {"weight", "bias"}


def test_an_average_of_another_network_is_refused() -> None:
    average = WeightAverage(nn.Linear(2, 2), 0.5, warmup=Duration.parse("1st"))
    with pytest.raises(ValueError, match=r"the average of weight is \[3, 2\], and \[2, 2\] is expected"):
        average.load_state_dict(WeightAverage(nn.Linear(2, 3), 0.5).state_dict())
    with pytest.raises(ValueError, match=r"the average of bias is missing, and \[2\] is expected"):
        average.load_state_dict(WeightAverage(nn.Linear(2, 2, bias=False), 0.5).state_dict())


@pytest.mark.thorough
def test_a_checkpoint_without_an_average_is_told(tmp_path: Path) -> None:
    train(tmp_path)
    state, _ = problem(EMA)
    restored = LocalReporter(tmp_path).restore()
    assert restored is not None
    with pytest.raises(ConfigError, match=r"does not fit these settings: .*average"):
        state.load(restored)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("train.ema_export=true", "train.ema_export: true needs an average of the weights; set train.ema=0.999"),
        ("train.ema_every=2", "train.ema_every: 2 needs an average"),
        ("train.ema_warmup=10%", "train.ema_warmup: 10% needs an average"),
        ("train.ema_buffers=copy", "train.ema_buffers: copy needs an average"),
        ("train.ema=1", "train.ema: 1.0 is out of range; give a number in [0, 1)"),
    ],
)
def test_settings_without_an_average_are_refused(word: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", [word])
    assert told in str(caught.value)


def check_averaged(backbone: dict[str, Tensor], average: dict[str, Tensor]) -> None:
    for name, value in backbone.items():
        assert torch.equal(value, average.get(f"backbone.{name}", value)), name
    assert average.keys() & {f"backbone.{name}" for name in backbone}


def on_ranks(folder: str, kind: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the checkpoint of a run has, as this rank sees it, and what a state has that has read it back."""
    words = (EMA, NOW, "train.ema_export=true", f"train.parallel={kind}", "train.workers=2")
    state, _ = train(Path(folder), *words, until=4)
    again, _ = problem(*words)
    restored = LocalReporter(Path(folder)).restore()
    assert restored is not None
    again.load(restored)
    found = (dist.whole(each.average.state_dict(), on_all=True) for each in (state, again) if each.average is not None)
    first, second = ({name: value.clone() for name, value in values.items()} for values in found)
    assert differing(first, second) == []
    exported = state.exported().state_dict()
    assert [
        name for name in exported if not torch.equal(exported[name], first.get(f"backbone.{name}", exported[name]))
    ] == []
    return first, second


@pytest.fixture(scope="module")
def by_kind(tmp_path_factory: pytest.TempPathFactory, run_ranks: RunRanks) -> dict[str, Any]:
    """Averages of a run on two ranks that hold all weights, and on two that hold shares; and their folders."""
    root = tmp_path_factory.mktemp("average")
    return {kind: (root / kind, run_ranks(2, on_ranks, str(root / kind), kind)) for kind in ("ddp", "fsdp")}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_it_is_the_same_on_every_rank_and_loads_on_one(by_kind: dict[str, Any], kind: str) -> None:
    folder, ((first, first_again), (second, second_again)) = by_kind[kind]
    for other in (second, first_again, second_again):
        assert differing(first, other) == []
    alone, _ = problem(EMA, NOW)
    restored = LocalReporter(folder).restore()
    assert restored is not None
    alone.load(restored)
    assert alone.step == 4
    assert differing(first, averages(alone)) == []
    backbone = load_backbone(str(restored)).state_dict()
    assert [
        name for name, value in backbone.items() if not torch.equal(value, first.get(f"backbone.{name}", value))
    ] == []


def test_shares_of_weights_have_shares_of_the_average(by_kind: dict[str, Any]) -> None:
    (_, ((whole, _), _)), (_, ((shared, _), _)) = by_kind["ddp"], by_kind["fsdp"]
    assert whole.keys() == shared.keys()
    for name, value in whole.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-5)
