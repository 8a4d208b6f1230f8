import sys
from pathlib import Path

import pytest
import torch

from perf.contenders import BareSimCLR, Workload, setup_of
from perf.step import default_names, measure, table
from raysl import distributed as dist
from raysl.methods.simclr import SimCLR
from raysl.schedule import Step

TINY = Workload(batch_size=4, image_size=16, depth=10, width=4, hidden_dim=8)


def test_bare_and_raysl_train_the_same_network_with_the_same_loss(tmp_path: Path) -> None:
    config = TINY.config("x", tmp_path, num_steps=2, world=1, threads=1)
    bare = BareSimCLR(TINY)
    method = SimCLR(setup_of(config), bare.backbone)
    method.projector.load_state_dict(bare.projector.state_dict())
    batch = TINY.batches(dist.rank())[0]
    out = method(batch, Step(0, 2, 2))
    torch.testing.assert_close(bare(batch.views["global"]), out.loss)


def test_batches_are_a_function_of_the_rank() -> None:
    first, again, other = TINY.batches(0), TINY.batches(0), TINY.batches(1)
    assert first[0].views["global"].shape == (4, 2, 3, 16, 16)
    torch.testing.assert_close(first[0].views["global"], again[0].views["global"], rtol=0, atol=0)
    seen = [int(index) for batch in [*first, *other] for index in batch.index]
    assert len(set(seen)) == len(seen)


@pytest.mark.slow
def test_the_bare_loop_and_fit_are_measured_side_by_side() -> None:
    numbers = measure("ab", repeats=1, steps=2, warmup=0, workload=TINY, threads=1)
    (repeat,) = numbers["repeats"]
    assert numbers["step"] == repeat
    assert min(repeat.values()) > 0
    assert numbers["ratios"] == {"b/a": repeat["b"] / repeat["a"]}
    assert numbers["environment"]["threads"] == {"a": [1], "b": [1]}


def test_without_ray_torchrun_takes_its_place(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_names() == "abcde"
    monkeypatch.setitem(sys.modules, "ray", None)
    with caplog.at_level("INFO", logger="raysl"):
        assert default_names() == "abdf"
    assert "Ray is not installed: leaving out c and e" in caplog.text


@pytest.mark.slow
def test_the_contenders_of_a_machine_without_ray_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "ray" or name.startswith("ray.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    numbers = measure(repeats=1, steps=1, workload=TINY, threads=2)
    assert list(numbers["step"]) == list("abdf")
    assert list(numbers["ratios"]) == ["b/a", "f/d"]
    assert numbers["environment"]["threads"] == {"a": [2], "b": [2], "d": [1, 1], "f": [1, 1]}
    assert "raysl's fit, torchrun" in table(numbers)


@pytest.mark.slow
def test_all_five_are_measured_with_equal_threads_and_niceness() -> None:
    numbers = measure(repeats=2, steps=1, workload=TINY, threads=2)
    assert [list(repeat) for repeat in numbers["repeats"]] == [list("abcde")] * 2
    assert all(speed > 0 for repeat in numbers["repeats"] for speed in repeat.values())
    assert list(numbers["ratios"]) == ["b/a", "c/a", "e/d"]
    environment = numbers["environment"]
    assert environment["threads"] == {"a": [2], "b": [2], "c": [2], "d": [1, 1], "e": [1, 1]}
    assert len({value for values in environment["niceness"].values() for value in values}) == 1


def test_the_table_says_which_goals_are_met() -> None:
    numbers = {
        "step": {"a": 100.0, "b": 98.5, "c": 94.0},
        "ratios": {"b/a": 0.985, "c/a": 0.94},
        "repeats": [{"a": 100.0, "b": 98.5, "c": 94.0}],
        "environment": {"threads": {"a": [2], "b": [2], "c": [2]}},
    }
    lines = table(numbers).splitlines()
    assert lines[1].split() == ["a", "bare", "loop", "1", "x", "2", "100.00"]
    assert lines[4] == "b/a 0.985 (0.985 to 0.985)  goal at least 0.98: ok"
    assert lines[5] == "c/a 0.940 (0.940 to 0.940)  goal at least 0.95: short"
