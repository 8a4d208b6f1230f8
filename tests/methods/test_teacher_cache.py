"""`method.cycle` and `method.cache` of distillation: views that come again, and the teacher's outputs for them."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.methods.distill import Distill
from raysl.methods.shared import teacher_outputs
from raysl.methods.shared.teacher_cache import TeacherCache
from raysl.methods.shared.teacher_heads import Lesson
from raysl.train import LocalReporter, fit
from raysl.train.state import TrainState
from tests.methods.properties import STOPS, restarted, small
from tests.rank_processes import RunRanks

CYCLE = ("method.cycle=1",)
SEVERAL = (
    "method.teacher=null",
    "method.teachers=[{teacher: untrained, name: a}, {teacher: untrained, name: b, target: features, size: 24}]",
)
OUTPUTS = [torch.randn(3, 2, 4), torch.randn(3, 2, 5, 2, 2, dtype=torch.float64).bfloat16()]
INDEX = np.array([4, 0, 6])


def trained(words: Sequence[str]) -> dict[str, Tensor]:
    """All that a checkpoint keeps after two epochs."""
    torch.set_num_threads(1)
    run = small("distill", *words)
    state = TrainState.create(run.setup, classes=run.classes)
    stream = LocalBatches(run.loader, dist.rank(), dist.world())
    fit(state, dist.data_parallel(state.method), run.setup.plan, stream, reporter=LocalReporter())
    return {name: value.clone() for name, value in state.method.state_dict().items()}


def again(folder: str, words: Sequence[str]) -> dict[int, list[str]]:
    return restarted("distill", folder, *words)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each question to a teacher."""
    counts: list[int] = []
    ask = teacher_outputs.ask

    def counting(lesson: Lesson, images: Tensor) -> tuple[Tensor, ...]:
        counts.append(len(images))
        return ask(lesson, images)

    monkeypatch.setattr(teacher_outputs, "ask", counting)
    return counts


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name, value in first.items() if not torch.equal(value, second[name])] == []


@pytest.mark.thorough
@pytest.mark.parametrize("more", [(), ("method.target=tokens",), SEVERAL], ids=["features", "tokens", "several"])
def test_a_run_with_the_cache_ends_in_the_bits_of_one_without(
    tmp_path: Path, asked: list[int], more: tuple[str, ...]
) -> None:
    words = (*CYCLE, *more)
    alone = trained(words)
    num_questions, cached = len(asked), (*words, f"method.cache={tmp_path}")
    asked.clear()
    assert_same(trained(cached), alone)
    assert len(asked) == num_questions // 2  # the second epoch reads
    asked.clear()
    assert_same(trained(cached), alone)
    assert asked == []


@pytest.mark.thorough
def test_views_come_again_after_the_cycle_and_never_without() -> None:
    def views(epoch: int, *words: str) -> Tensor:
        return small("distill", *words).loader.load_samples(np.arange(4), epoch).views["global"]

    for name, cycle in (("method.cycle=1", 1), ("method.cycle=2", 2)):
        for epoch in range(4):
            assert torch.equal(views(epoch, name), views(epoch % cycle))
    assert not torch.equal(views(1), views(0))


@pytest.mark.thorough
def test_each_kind_of_views_is_stored_on_its_own(tmp_path: Path, asked: list[int]) -> None:
    words = ("method.cycle=2", f"method.cache={tmp_path}", "train.epochs=4")
    trained(words)
    assert len(asked) == 8  # of 16 steps
    assert sorted(path.name for path in tmp_path.glob("*/*.rows")) == ["views-0.rows", "views-1.rows"]


@pytest.mark.thorough
def test_another_teacher_seed_or_view_has_a_folder_of_its_own(tmp_path: Path) -> None:
    cached = (*CYCLE, f"method.cache={tmp_path}", "train.epochs=1")
    for number, more in enumerate([(), ("seed=1",), ("method.views.flip=0.1",), ("method.teacher_size=24",)], 1):
        trained((*cached, *more))
        assert len(list(tmp_path.iterdir())) == number


def test_outputs_come_back_in_their_types_and_bits(tmp_path: Path) -> None:
    TeacherCache(str(tmp_path), 7, {"a": 1}).write(INDEX, 1, OUTPUTS)
    cache = TeacherCache(str(tmp_path), 7, {"a": 1})
    stored = cache.read(INDEX[::-1], 1)
    assert stored is not None
    for output, expected in zip(stored, OUTPUTS, strict=True):
        assert output.dtype == expected.dtype
        assert torch.equal(output, expected.flip(0))
    assert cache.read(INDEX, 0) is None
    assert cache.read(np.array([4, 1]), 1) is None
    assert TeacherCache(str(tmp_path), 7, {"a": 2}).read(INDEX, 1) is None


@pytest.mark.parametrize("how", ["cut", "changed", "moved"])
def test_a_damaged_record_counts_as_missing_and_is_written_anew(tmp_path: Path, how: str) -> None:
    TeacherCache(str(tmp_path), 7, {}).write(INDEX, 0, OUTPUTS)
    (file,) = tmp_path.glob("*/views-0.rows")
    content = bytearray(file.read_bytes())
    length = len(content) // 7
    if how == "cut":
        del content[-1]
    elif how == "changed":
        content[-1] ^= 1
    else:
        content[6 * length :] = content[4 * length : 5 * length]
    file.write_bytes(content)
    cache = TeacherCache(str(tmp_path), 7, {})
    assert cache.read(INDEX[2:], 0) is None
    assert cache.read(INDEX[:2], 0) is not None
    cache.write(INDEX, 0, OUTPUTS)
    assert cache.read(INDEX, 0) is not None


@pytest.mark.thorough
def test_a_full_disk_ends_the_storing_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with caplog.at_level(logging.WARNING):
        trained((*CYCLE, f"method.cache={tmp_path}", "train.epochs=1"))
    assert caplog.text.count("No space left on device") == 1


@pytest.mark.thorough
def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    cached = f"method.cache={tmp_path}"
    for words, message in (
        ((cached,), "set method.cycle=1"),
        ((*CYCLE, "method.cache=s3://bucket/cache"), "give a folder on a disk"),
        ((*CYCLE, cached, "train.parallel=fsdp", "train.workers=2"), "set train.parallel=zero1 or ddp"),
        ((*CYCLE, cached, "train.compile=step"), "set train.compile=true"),
    ):
        with pytest.raises(ConfigError, match=message):
            small("distill", *words)
    setup = small("distill", *CYCLE, cached).setup
    with pytest.raises(ConfigError, match="nothing identifies these images"):
        Distill.check(replace(setup, data=replace(setup.data, fingerprint="")))


def test_weights_of_another_teacher_are_another_cache(tmp_path: Path) -> None:
    folders = {TeacherCache.of(str(tmp_path), 7, {}, nn.Linear(2, 3)).folder for _ in range(2)}
    assert len(folders) == 2


def test_two_ranks_share_the_cache_and_a_restart_changes_no_bit(run_ranks: RunRanks, tmp_path: Path) -> None:
    without, words = run_ranks(2, trained, CYCLE), (*CYCLE, f"method.cache={tmp_path / 'cache'}")
    for first, second in zip(without, run_ranks(2, trained, words), strict=True):
        assert_same(first, second)
    more = (*words, "seed=3")
    for differing in run_ranks(2, again, str(tmp_path), more):
        assert differing == {stop: [] for stop in STOPS}
