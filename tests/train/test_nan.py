"""A loss that stops being finite, in a method from a user's file, through the command line."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raysl.checkpoint.backbone import load_backbone
from raysl.components import Classes
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.methods.simclr import SimCLR
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train import LocalReporter, NonFiniteLoss, fit
from raysl.train.state import TrainState
from tests.runs.runs import SMALL

BAD_STEP = 13
METHOD = f'''\
"""A method of a user's own, in a file that no worker can import by name."""

from dataclasses import dataclass

from raysl.methods.simclr import SimCLR


class NaNCLR(SimCLR):
    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        bad_step: int = {BAD_STEP}
        """The step at which the loss is lost."""

    def training_step(self, batch, step):
        out = super().training_step(batch, step)
        if step.index == self.config.bad_step:
            out.loss = out.loss * float("nan")
        return out
'''


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_run_once_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(METHOD)
    words = [*SMALL, "method.name=mine.py:NaNCLR", "storage=runs", "name=nan"]
    done = subprocess.run(
        [sys.executable, "-m", "raysl", "pretrain", "quickstart", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    run = tmp_path / "runs" / "nan"
    kept = run / "checkpoint_000000010"
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (message,) = re.findall(r"^error: (.*)$", done.stderr, re.MULTILINE)
    assert f"the loss is not finite at step {BAD_STEP}" in message
    assert message.endswith(f"the last good checkpoint is {kept}")

    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event.split()[0] for event in events[:-1]] == ["started", "saved", "saved"], "it was tried again"
    assert events[-1] == message
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, BAD_STEP + 1)), "a step after the last good one was logged"
    assert sorted(path.name for path in run.glob("checkpoint_0*")) == ["checkpoint_000000005", kept.name]
    monkeypatch.chdir(tmp_path)  # settings name the file from the working directory
    backbone = load_backbone(str(run), trust_code=True)
    assert all(torch.isfinite(weight).all() for weight in backbone.state_dict().values())


class _Destroyed(SimCLR):
    """Loses a weight in the sixth update, whose loss was fine."""

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        if step.index == 5:
            next(self.parameters()).data.view(-1)[0] = float("inf")


@pytest.mark.thorough
def test_weights_that_an_update_destroyed_are_not_saved(tmp_path: Path) -> None:
    small = ["backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4"]
    train = ["train.batch_size=8", "train.epochs=3", "train.checkpoint_every=3st"]
    config = load_config("quickstart", [*small, *train])
    setup = Setup.of(config, 32)
    state = TrainState.create(setup, classes=replace(Classes.of(config), method=_Destroyed))
    views = torch.randn(8, 2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    batches = [Batch({"global": views}, torch.arange(8), torch.zeros(8, dtype=torch.int64))]
    with pytest.raises(NonFiniteLoss, match="weights are not finite after step 5"):
        fit(state, state.method, setup.plan, batches, reporter=LocalReporter(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_000000003"]
