"""A user's function every so often."""

from pathlib import Path
from typing import Any

import pytest
import torch

from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.errors import ConfigError, RunFailed
from raysl.train import Run
from raysl.train.callbacks.callback import configured
from raysl.train.callbacks.function import Function
from tests.rank_processes import RunRanks
from tests.train.callbacks.own import train

HERE = "tests.train.callbacks.test_function"


def measured(run: Run, backbone: Any) -> dict[str, Any]:
    assert not backbone.training
    features = backbone(torch.randn(4, 3, 8, 8))
    assert not features.requires_grad
    return {"dim": features.shape[1], "inner": {"step": torch.tensor(run.state.step), "rank": dist.rank()}}


def bad_value(run: Run, backbone: Any) -> dict[str, Any]:
    return {"a": {"b": "text"}}


def no_dict(run: Run, backbone: Any) -> Any:
    return 3.0


def broken_on_one(run: Run, backbone: Any) -> dict[str, Any]:
    return {"share": 1 / (1 - dist.rank())}


def other_names(run: Run, backbone: Any) -> dict[str, Any]:
    return {f"of_{dist.rank()}": 1}


def function(name: str, **settings: Any) -> Function:
    return Function(Function.Config(function=f"{HERE}:{name}", **settings))


@pytest.mark.thorough
def test_its_numbers_are_logged_by_flattened_names_and_training_is_as_without_it() -> None:
    state, _, lines = train(None, function("measured", prefix="my_"))
    plain, _, _ = train(None)
    found = {step: {name: line[name] for name in line if name.startswith("my_")} for step, line in lines.items()}
    assert {step for step, numbers in found.items() if numbers} == {4, 8}
    assert found[8] == {"my_dim": state.method.export().feature_dim, "my_inner/step": 8, "my_inner/rank": 0}
    assert state.method.training
    assert all(value.equal(plain.method.state_dict()[name]) for name, value in state.method.state_dict().items())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bad_value", r"test_function:bad_value at step 4: TypeError: a/b is a str; return a number"),
        ("no_dict", r"TypeError: it returned a float; return a dict of numbers by name"),
    ],
)
def test_what_is_no_number_ends_the_run(name: str, message: str) -> None:
    with pytest.raises(RunFailed, match=message):
        train(None, function(name))


def _on_ranks() -> list[tuple[str, dict[int, dict[str, float]]]]:
    found: list[tuple[str, dict[int, dict[str, float]]]] = []
    for name in ("measured", "broken_on_one", "other_names"):
        try:
            found.append(("", train(None, function(name))[2]))
        except RunFailed as error:
            found.append((str(error), {}))
    return found


def test_workers_log_the_mean_and_fail_together(run_ranks: RunRanks) -> None:
    for (_, lines), (broken, _), (other, _) in run_ranks(2, _on_ranks):
        assert lines[4]["inner/rank"] == 0.5
        assert "ZeroDivisionError" in broken
        assert "returns other names on other workers" in other


@pytest.mark.thorough
def test_a_function_of_a_file_is_found_on_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probe.py").write_text("def score(run, backbone):\n    return {'one': 1}\nlimit = 3\n")
    monkeypatch.chdir(tmp_path)
    config = load_config("quickstart", ["callbacks.score={name: function, function: 'probe.py:score'}"])
    (callback,) = configured(config)
    monkeypatch.chdir("/")
    assert config.callbacks["score"].function == "probe.py:score"  # type: ignore[attr-defined]
    _, _, lines = train(None, callback)
    assert lines[4]["one"] == 1
    for name, message in (
        (f"{tmp_path}/probe.py:scores", "has no function 'scores'; its functions: score"),
        (f"{tmp_path}/probe.py:limit", "has no function 'limit'"),
        ("score", "unknown function 'score'; give package.module:function or path/to/file.py:function"),
    ):
        with pytest.raises(ConfigError, match=message):
            configured(load_config("quickstart", [f"callbacks.function.function='{name}'"]))
