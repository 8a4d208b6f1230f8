"""The page of parts: its examples run and print what it says, and it has a row for each loss."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raysl import losses
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.data.stream.loader import LocalBatches
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train import LocalReporter, TrainState, fit
from raysl.train.prepare import prepare
from tests.methods.properties import SMALL

PAGE = (Path(__file__).parent.parent / "docs" / "parts.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [block for block in BLOCKS if not block.startswith("# mixed.py")]
HEADINGS = [heading for heading in re.findall(r"^## (.+)$", PAGE, re.MULTILINE) if not heading.startswith("Two")]


@pytest.mark.parametrize("example", EXAMPLES, ids=HEADINGS)
def test_an_example_prints_what_the_page_says(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    exec(example, {})
    printed = re.findall(r"^print\(.*\)  # (.+)$", example, re.MULTILINE)
    assert printed
    assert capsys.readouterr().out.splitlines() == printed


def test_every_loss_has_a_row() -> None:
    rows = re.findall(r"^\| (`.+?) \| .+ \| .+ \|$", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    functions = {name for name in losses.__all__ if name[0].islower()} - {"at_least_fp32"}
    assert functions - named == set()


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of the page's command, beside its file."""
    (mixed,) = set(BLOCKS) - set(EXAMPLES)
    (tmp_path / "mixed.py").write_text(mixed)
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^raysl pretrain (.+)$", PAGE, re.MULTILINE)
    few = [word for word in SMALL if not word.startswith(("optim.", "data.lanes"))]
    return [*command.split(), *few, "train.workers=1", "train.end=4st"]


def test_the_method_of_two_losses_is_ten_lines_and_sums_them(words: list[str], tmp_path: Path) -> None:
    lines = (tmp_path / "mixed.py").read_text().partition("class Mixed(VICReg):\n")[2].splitlines()
    assert len([line for line in lines if line.strip()]) <= 10
    state = TrainState.create(Setup.of(load_config(words[0], words[1:]), 64, 10))
    batch = Batch({"global": torch.randn(8, 2, 3, 16, 16)}, torch.arange(8), torch.full((8,), -1))
    out = state.method(batch, Step(0, 4, 2))
    assert tuple(out.metrics) == type(state.method).logged
    assert out.loss.item() == pytest.approx((out.metrics["vicreg"] + 0.5 * out.metrics["barlow_twins"]).item())
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in state.method.parameters())


@pytest.mark.slow
def test_the_method_of_two_losses_trains(words: list[str]) -> None:
    run = prepare(load_config(words[0], words[1:]))
    state = TrainState.create(run.setup, classes=run.classes)
    batches = LocalBatches(replace(run.loader, augment_in_task=True))
    metrics = fit(state, state.method, run.setup.plan, batches, reporter=LocalReporter())
    assert metrics["embedding_std"] > 0.1
