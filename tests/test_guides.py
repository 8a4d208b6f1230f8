"""The guides for those who extend raysl: their files and commands, as they are printed."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.data.stream.loader import LocalBatches
from raysl.report.views import write_views
from raysl.train import LocalReporter, TrainState, fit
from raysl.train.prepare import prepare
from tests.methods.properties import SMALL

DOCS = Path(__file__).parent.parent / "docs"
FEW = tuple(word for word in SMALL if not word.startswith("optim."))


def unpacked(guide: str, folder: Path) -> list[list[str]]:
    """Write the files of a guide into a folder; the words of its commands."""
    text = (DOCS / f"{guide}.md").read_text()
    for language, content in re.findall(r"^```(python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        name = re.match(r"# (\S+)\n", content)
        assert name is not None, f"a block of {language} in {guide}.md has no name"
        (folder / name[1]).write_text(content)
    commands = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in commands for line in block.splitlines()]


@pytest.mark.parametrize("guide", ["write-a-method", "write-a-backbone"])
def test_what_a_guide_writes_trains(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((_, command, *words),) = unpacked(guide, tmp_path)
    assert command == "pretrain"
    few = [word for word in FEW if not word.startswith("data.lanes")]
    run = prepare(load_config(words[0], [*words[1:], *few, "train.workers=1"]))
    state = TrainState.create(run.setup, classes=run.classes)
    batches = LocalBatches(replace(run.loader, augment_in_task=True))
    metrics = fit(state, state.method, run.setup.plan, batches, reporter=LocalReporter())
    assert metrics["embedding_std"] > 0.1


def test_the_transform_of_the_guide_is_seen_on_the_page_of_its_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ((_, *command, name, first, second),) = unpacked("write-a-transform", tmp_path)
    assert command == ["report", "views"]
    page = write_views(name, [first, second], tmp_path / "views.html", num=2, num_epochs=1).read_text()
    assert "SaltAndPepper" in page


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["write-a-method", "write-a-backbone"])
def test_the_command_of_a_guide_runs_as_printed(guide: str, tmp_path: Path) -> None:
    ((_, *words),) = unpacked(guide, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "raysl", *words], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert "low_shot" in done.stdout
