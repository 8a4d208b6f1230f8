"""Checkpoints that are damaged while nobody looks: a start takes the newest whole one."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.conftest import Calm, Record
from tests.chaos.harness import Disturbed

pytestmark = pytest.mark.slow


def truncate(checkpoint: Path) -> None:
    state = checkpoint / "train_state.pt"
    state.write_bytes(state.read_bytes()[:1000])


def flip(checkpoint: Path) -> None:
    state = checkpoint / "train_state.pt"
    content = bytearray(state.read_bytes())
    content[-1000] ^= 1
    state.write_bytes(content)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disturbed]:
    """A run whose driver was killed at step 17."""
    run = Disturbed(tmp_path_factory.mktemp("killed"))
    run.start()
    run.until_held()
    run.last.kill()
    run.let_go()
    yield run
    run.workplace.close()


@pytest.mark.parametrize(
    ("fault", "damage"),
    [
        ("the newest checkpoint is truncated", truncate),
        ("one bit of the newest checkpoint is flipped", flip),
        ("the newest checkpoint is deleted", shutil.rmtree),
    ],
    ids=["truncated", "flipped", "deleted"],
)
def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    fault: str, damage: Callable[[Path], None], killed: Disturbed, tmp_path: Path, calm: Calm, record: Record
) -> None:
    shutil.copytree(killed.storage, tmp_path / "runs")
    run = Disturbed(tmp_path, hold=0)
    run.hit(lambda: damage(tmp_path / "runs" / "one" / "checkpoint_000000015"))
    try:
        assert "resumed at step 10 of 40" in run.start().ended()
        row = run.row(fault, calm())
    finally:
        run.workplace.close()
    assert any("passed over checkpoint_000000015" in line for line in row.sees) == (damage is not shutil.rmtree)
    record(replace(row, again=17 - 10))
