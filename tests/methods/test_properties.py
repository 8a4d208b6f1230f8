"""What holds for every method that has an alias: the gradient of one process on any number of ranks, restarts that
change no bit, parameters that all train, and representations that are worth more than the untrained network's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.train.prepare import prepare
from tests.methods.properties import FEW, METHODS, STOPS, exact_steps, on_ranks
from tests.rank_processes import RunRanks
from tests.tiers import each

NOT_EXACT: dict[str, str] = {}
"""Methods whose gradient is another one on other numbers of ranks, each with the reason."""
MARGIN = 8.0
"""Points of 5-shot accuracy that a minute of training adds to the untrained network, at least."""

every_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)], ids=lambda world: f"{world} ranks")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, run_ranks: RunRanks) -> list[Any]:
    here = [item for item in request.session.items if item.path == request.path and "ranks" in item.fixturenames]
    asked = {item.callspec.params["name"] for item in here}
    folder = str(tmp_path_factory.mktemp("restarts"))
    return run_ranks(request.param, on_ranks, sorted(asked), folder, timeout=60.0 * len(asked))


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    made: dict[str, Any] = {}

    class Made(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            self[name] = exact_steps(name)
            return self[name]

    return Made(made)


def assert_near(found: torch.Tensor, expected: torch.Tensor, scale: float, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * scale, msg=lambda said: f"{what}: {said}")


@every_method
def test_any_number_of_ranks_gives_the_gradients_and_the_state_of_one_process(
    name: str, ranks: list[Any], alone: dict[str, Any]
) -> None:
    if name in NOT_EXACT:
        pytest.skip(NOT_EXACT[name])
    one = alone[name]
    for exact, _ in ranks:
        many = exact[name]
        assert len(many["grads"]) == len(one["grads"]) == 8
        for step, grads in enumerate(one["grads"]):
            assert many["grads"][step].keys() == grads.keys()
            scale = max(grad.abs().max().item() for grad in grads.values())
            for key, grad in grads.items():
                assert_near(many["grads"][step][key], grad, scale, f"gradient of {key} at step {step}")
        for key, value in one["ended"].items():
            assert_near(many["ended"][key], value, max(1.0, value.abs().max().item()), f"{key} at the end")


@every_method
@pytest.mark.parametrize("stop", STOPS)
def test_a_restart_at_any_step_changes_no_bit(name: str, stop: int, ranks: list[Any]) -> None:
    for _, restarts in ranks:
        assert restarts[name][stop] == []


@pytest.mark.parametrize("name", each(METHODS, now=FEW))
def test_every_parameter_trains_and_stays_finite(name: str, alone: dict[str, Any]) -> None:
    one = alone[name]
    moved = {key for grads in one["grads"] for key, grad in grads.items() if grad.abs().max() > 0}
    trained = {key for grads in one["grads"] for key in grads}
    assert trained - moved == set()
    assert all(value.isfinite().all() for value in one["ended"].values() if value.is_floating_point())
    assert [key for key in trained if torch.equal(one["begun"][key], one["ended"][key])] == []


@pytest.mark.parametrize("name", each(METHODS, now=FEW))
def test_a_method_has_configurations_of_its_own(name: str) -> None:
    for where in (name, f"cifar10/{name}", f"digits/{name}"):
        config = load_config(where, ["data.path=/somewhere"] if where != f"digits/{name}" else [])
        assert config.method.name == name
    assert prepare(load_config(f"digits/{name}", ["train.epochs=1"])).setup.data.num_samples > 1000


@pytest.mark.slow
@every_method
def test_a_minute_of_training_beats_the_untrained_network(name: str, tmp_path: Path) -> None:
    import raysl

    result = raysl.pretrain(load_config(f"digits/{name}", [f"storage={tmp_path}", "benchmarks=[low_shot]"]))
    assert result.report is not None
    scores = result.report.metrics
    print({key: value for key, value in scores.items() if "shot" in key})
    assert scores["low_shot/5_shot"] > scores["low_shot/5_shot/untrained"] + MARGIN
