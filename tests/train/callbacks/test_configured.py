"""Callbacks that the settings name, raysl's own and a user's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raysl.components import ALIASES
from raysl.config.docs import annotate
from raysl.config.dump import differences, dump
from raysl.config.load import load_config, load_dumped
from raysl.errors import ConfigError
from raysl.train.callbacks.callback import configured
from raysl.train.callbacks.numbers import Windows
from raysl.train.callbacks.profiler import Profiler
from tests.runs.runs import SMALL, tensors
from tests.train.callbacks.own import Lines, train

MINE = '''
from dataclasses import dataclass
from raysl import distributed as dist
from raysl.config.schema import CallbackConfig
from raysl.train import Callback

class Counts(Callback):
    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        factor: float = 1.0
        """Of what is logged."""
        end: int = 1000
        """Step to finish at."""

    seen = 0

    def on_step_end(self, run, step, out):
        self.seen += 1
        run.log({"seen": self.seen * self.config.factor, "rows": len(run.batch)})
        if step.index == self.config.end:
            run.finish(f"it is step {step.index}")

    def on_train_start(self, run):
        run.note(f"counting from {self.seen}")

    def on_train_end(self, run):
        if dist.is_main():
            with run.writing() as folder:
                (folder / "count.txt").write_text(str(self.seen))

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state.get("seen", 0)

class Plain(Callback):
    pass

class Odd(Callback):
    def __init__(self, config, more):
        pass

class Other:
    Config = Counts.Config
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def error_of(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        configured(load_config("quickstart", words))
    return str(caught.value)


def test_a_list_names_them_with_their_defaults_and_dotted_keys_set_more(mine: str) -> None:
    words = [f"callbacks=[profiler, {mine}:Counts, {mine}:Plain]", "callbacks.profiler.start=3"]
    config = load_config("quickstart", [*words, "callbacks.Counts.factor=2", "callbacks.slow.name=windows"])
    assert list(config.callbacks) == ["profiler", "Counts", "Plain", "slow"]
    made = configured(config)
    assert [type(callback).__name__ for callback in made] == ["Profiler", "Counts", "Plain", "Windows"]
    assert [callback.state_key for callback in made] == [f"callbacks.{key}" for key in config.callbacks]
    assert made[0].config == Profiler.Config(name="profiler", start=3)
    assert made[1].config.factor == 2
    assert "factor: 2.0" in annotate(config)
    assert "Of what is logged." in annotate(config)


def test_a_list_takes_the_place_of_those_below_it(tmp_path: Path, mine: str) -> None:
    (tmp_path / "run.yaml").write_text(
        "base: quickstart\ncallbacks:\n  profiler: {start: 7}\n  Counts: {name: mine.py:Counts, factor: 3}\n"
    )
    path = str(tmp_path / "run.yaml")
    assert load_config(path, []).callbacks["Counts"].name == f"{mine}:Counts", "it is looked for beside the file"
    only = load_config(path, ["callbacks=[profiler]"]).callbacks
    assert list(only) == ["profiler"]
    assert only["profiler"].start == 7  # type: ignore[attr-defined]
    assert load_config(path, [f"callbacks=[{mine}:Counts]"]).callbacks["Counts"].factor == 3  # type: ignore[attr-defined]
    assert load_config(path, ["callbacks=[]"]).callbacks == load_config(path, ["callbacks={}"]).callbacks == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["callbacks=[profilr]"], "callbacks.profilr.name: unknown callback 'profilr'; did you mean 'profiler'?"),
        (["callbacks.profiler.begin=3"], "callbacks.profiler.begin: no such setting"),
        (["callbacks.profiler.start=-1"], "callbacks.profiler.start: -1"),
        (["callbacks=null"], "write callbacks=[] for none"),
        (["callbacks=[profiler, profiler]"], "callbacks: 'profiler' occurs twice; give each another key"),
        (["callbacks=[no.py:Mine]"], "no file"),
        (["callbacks=[{mine}:Odd]"], "callbacks.Odd: Odd.__init__ takes other arguments than its settings"),
        (["callbacks=[{mine}:Other]"], "callbacks.Other: Other is not a raysl.train.Callback; derive it"),
    ],
)
def test_what_cannot_be_a_callback_is_refused_before_a_worker_starts(mine: str, words: list[str], message: str) -> None:
    assert message in error_of(*(word.replace("{mine}", mine) for word in words))


def test_other_callbacks_make_no_other_run_and_a_checkpoint_loads_without_their_files(mine: str) -> None:
    config = load_config("quickstart", [f"callbacks=[{mine}:Counts]"])
    assert differences(load_config("quickstart"), config) == []
    Path(mine).unlink()
    assert load_dumped(dump(config)).callbacks == {}


@pytest.mark.thorough
def test_every_named_callback_lets_a_run_end_in_the_same_bits(tmp_path: Path) -> None:
    plain, _, lines = train(tmp_path / "plain")
    named = [name for name in ALIASES["callback"] if name not in (*NEEDS_SETTINGS, *TRACKERS)]
    words = [f"callbacks=[{','.join(named)}]", *(word for words in NEEDS_SETTINGS.values() for word in words)]
    watched, _, more = train(tmp_path / "watched", *configured(load_config("quickstart", words)))
    assert len(watched.callbacks) == len(ALIASES["callback"]) - len(TRACKERS) + 1
    for index, line in lines.items():
        assert line["loss"] == more[index]["loss"]
    for name, value in plain.method.state_dict().items():
        assert value.equal(watched.method.state_dict()[name]), name


TRACKERS = ("wandb", "mlflow")
"""Callbacks that need a package, see test_trackers.py."""
NEEDS_SETTINGS: dict[str, tuple[str, ...]] = {
    "checkpoint_keeper": ("callbacks.checkpoint_keeper={metric: loss, mode: min}",),
    "function": ("callbacks.function.function=tests.train.callbacks.test_function:measured",),
    "early_stop": ("callbacks.early_stop={metric: loss, mode: min}",),
}
"""What the callbacks that have a setting without a default are given, by name."""


@pytest.mark.thorough
def test_states_of_two_of_a_kind_do_not_mix(tmp_path: Path) -> None:
    words = ["callbacks.a={name: windows, names: [loss]}", "callbacks.b={name: windows, names: [lr], size: 2}"]
    state, _, _ = train(tmp_path, *configured(load_config("quickstart", words)), Lines())
    assert list(state.callbacks) == ["callbacks.a", "callbacks.b", "Lines"]
    assert state.callbacks["callbacks.a"]["values"].keys() == {"loss"}
    assert len(state.callbacks["callbacks.b"]["values"]["lr"]) == 2
    assert isinstance(configured(load_config("quickstart", words))[0], Windows)


@pytest.mark.slow
def test_a_run_with_a_callback_from_a_file_logs_notes_writes_finishes_and_goes_on(tmp_path: Path, mine: str) -> None:
    def raysl(*words: str) -> str:
        command = [sys.executable, "-m", "raysl", "pretrain", "quickstart", *SMALL, "storage=runs", "name=own", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stderr

    own = (
        "train.workers=2",
        "callbacks=[mine.py:Counts, iteration_timer, precise_bn, embedding]",
        "callbacks.Counts.factor=10",
    )
    output = raysl(*own, "callbacks.Counts.end=7")
    run = tmp_path / "runs" / "own"
    assert "counting from 0" in output
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["seen"] for line in lines] == [10.0 * step for step in range(1, 8)]
    assert lines[0]["rows"] == 16
    assert "timer/mean_s" in lines[-1]
    assert (run / "count.txt").read_text() == "7"
    assert tensors(run)["step"] == 7
    assert not list(run.glob("embedding/*")), "it was no last step"
    assert "is finished: it is step 7; train.extend=true goes on" in raysl(*own, "callbacks.Counts.end=7")
    (tmp_path / "mine.py").unlink()
    assert "resumed at step 7" in raysl(
        "train.extend=true", "train.workers=2", "callbacks=[windows, embedding, precise_bn]"
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 41))
    assert "loss_median" in lines[-1]
    assert len((run / "embedding" / "000000040" / "metadata.tsv").read_text().splitlines()) == 257
