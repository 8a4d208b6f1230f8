"""A method's step as one compiled program."""

from functools import cache
from pathlib import Path

import pytest
import torch

from raysl.components import resolve
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.shared.device import prepare_device
from raysl.train import LocalReporter, fit
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.fake_gpu.breaks import Traced, backend, traced, traced_steps
from tests.methods.properties import METHODS
from tests.train.problem import StopAt, batches, differing, problem, tensors_of

HOLDING = [name for name in METHODS if resolve("method", name).compiles != "no"]


def small_run() -> tuple[TrainState, list[Batch]]:
    state, plan = problem("backbone.num_stages=1", "train.epochs=1", "train.log_every=1st")
    return state, batches(plan)


@cache
def eager(name: str, *words: str) -> Traced:
    return traced(name, *words, by=None)


@pytest.mark.thorough
def test_simclrs_step_is_one_program_for_all_steps_with_the_bits_of_a_plain_one() -> None:
    found = {by: traced_steps(*small_run(), by) for by in ("eager", None)}
    assert (found["eager"].programs, found["eager"].breaks, found["eager"].failure) == (1, {}, None)
    assert found["eager"].losses == found[None].losses


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLDING)
def test_a_step_is_one_program_with_its_backward_pass(name: str) -> None:
    found = traced(name, by="aot_eager")
    assert (found.breaks, found.failure) == ({}, None)
    assert found.programs <= 3, "one more where a number of the step becomes a variable, or a phase of training ends"
    assert found.losses == pytest.approx(eager(name).losses, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ibot", "dino_v2"])
def test_drop_path_drops_the_same_samples_in_a_compiled_step(name: str) -> None:
    found = traced(name, "backbone.drop_path=0.3")
    assert found.breaks == {}
    assert found.losses == pytest.approx(eager(name, "backbone.drop_path=0.3").losses, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name not in HOLDING])
def test_the_methods_that_are_refused_do_not_hold(name: str) -> None:
    found = traced(name)
    assert found.breaks or found.failure


def test_weights_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, mode: function)
    compiled, plain = problem("train.compile=step")[0].method, problem()[0].method
    assert compiled.compiled_step is not None
    assert list(compiled.state_dict()) == list(plain.state_dict())


@pytest.mark.slow
def test_a_compiled_run_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    with backend("eager"):
        words = ("train.compile=step", "train.accumulate=2")
        through, plan = problem(*words)
        fit(through, through.method, plan, batches(plan), reporter=LocalReporter())
        first, _ = problem(*words)
        fit(first, first.method, plan, batches(plan), callbacks=[StopAt(3)], reporter=LocalReporter(tmp_path))
        again, _ = problem(*words)
        again.load(tmp_path / "checkpoint_000000003")
        fit(again, again.method, plan, batches(plan), reporter=LocalReporter())
    assert differing(tensors_of(through), tensors_of(again)) == []


@pytest.mark.slow
def test_compiled_by_inductor_it_trains_as_a_plain_one() -> None:
    states = []
    for words in (["train.compile=step"], []):
        state, plan = problem("train.epochs=1", *words)
        fit(state, state.method, plan, batches(plan), reporter=LocalReporter())
        states.append(state.method.state_dict())
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("npid", ["train.compile=step"], "NPID draws random numbers on the host in its step"),
        ("supervised", ["train.compile=step"], "Supervised draws random numbers on the host"),
        ("simclr", ["train.compile=step", "train.workers=[1,2]"], "is for one worker, and there may be 2"),
        ("simclr", ["train.compile=step", "train.recompute=all"], "leave out train.recompute, or set train.compile=tr"),
        ("simclr", ["train.cuda_graphs=true"], "records a compiled step; set train.compile=step as well"),
        ("simclr", ["train.compile=true", "train.cuda_graphs=true"], "set train.compile=step as well"),
        (
            "simclr",
            ["train.compile=step", "train.cuda_graphs=true", "train.accumulate=2"],
            "does not go with train.accumulate=2",
        ),
        ("dino", ["train.compile=step", "train.cuda_graphs=true"], "DINO computes with numbers that change with time"),
        ("simclr", ["train.compile=all"], "'?all'? is not"),
    ],
)
def test_what_does_not_hold_is_refused_before_a_worker_starts(name: str, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(load_config(f"digits/{name}", words))


@pytest.mark.parametrize(("word", "value"), [("true", True), ("false", False), ("step", "step")])
def test_old_values_are_read_as_before(word: str, value: object) -> None:
    assert load_config("quickstart", [f"train.compile={word}"]).train.compile == value


def test_cuda_graphs_are_refused_on_a_cpu() -> None:
    train = load_config("quickstart", ["train.compile=step", "train.cuda_graphs=true"]).train
    with pytest.raises(ConfigError, match=r"cuda_graphs=true needs a GPU.* set train.cuda_graphs=false"):
        prepare_device(train, torch.device("cpu"))
