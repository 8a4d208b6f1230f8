"""What a method does besides its steps: its task on held-out images, and its work before an epoch."""

import logging
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as torch_dist
from torch import Tensor

from raysl import distributed as dist
from raysl.benchmarks.suite.fitting import check_benchmarks
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.backbone import Backbone
from raysl.plan.setup import Setup
from raysl.schedule import Duration, Step
from raysl.train import LocalReporter, TrainPlan, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.held_out import HeldOut
from raysl.train.prepare import Measurements, prepare
from raysl.train.state import TrainState
from tests.data.samples import png
from tests.rank_processes import RunRanks
from tests.train.problem import SMALL

NUM = 25  # images of either split


class Told(SimCLR):
    """SimCLR that tells of held-out images who they are, and notes what it draws and sees before an epoch."""

    evaluated = ("index", "square", "light", "drawn", "some", "of_unlabelled")

    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        """Those of SimCLR."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.before: list[tuple[float, ...]] = []
        self.inside: list[float] = []
        self.plain: list[list[int]] = []

    def evaluation_step(self, batch: Batch) -> dict[str, Tensor]:
        """See `Method.evaluation_step`."""
        assert not self.training
        place = batch.index.double()
        light = batch.views["global"].mean((1, 2, 3, 4))
        return {
            "index": place,
            "square": place**2,
            "light": light,
            "drawn": torch.from_numpy(batch.random("x").uniform()),
            "some": place.masked_fill(place % 2 == 1, torch.nan),
            "of_unlabelled": place * torch.nan,
        }

    def before_epoch(self, step: Step, batches: Callable[[], Iterator[Batch]]) -> None:
        """See `Method.before_epoch`."""
        self.before.append((torch.rand(()).item(), float(np.random.rand()), random.random()))
        for _ in range(2):
            made = list(batches())
            assert all(batch.views["image"].shape == (len(batch), 1, 3, 16, 16) for batch in made)
            self.plain.append(torch.cat([batch.index for batch in made]).tolist())

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """See `Method.training_step`."""
        assert self.training
        self.inside.append(torch.rand(()).item())
        return super().training_step(batch, step)


class _Lines(Callback):
    """Keeps what is logged, by step."""

    def __init__(self) -> None:
        self.found: dict[int, dict[str, float]] = {}

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        self.found[step.index] = {name: value for name, value in line.items() if name.startswith("heldout_")}


def words(*more: str) -> list[str]:
    return [*SMALL, f"data.limit={NUM}", "benchmarks=[]", "train.online_knn_every=null", *more]


def told(*more: str) -> list[str]:
    return words("method.name=tests.train.test_held_out:Told", *more)


def trained() -> dict[str, Any]:
    """What the method was told and logged in a run of two epochs of two steps, on the ranks that are there."""
    run = prepare(load_config("quickstart", told("train.eval_every=3st")), check_benchmarks)
    assert run.test is not None
    plan = TrainPlan.from_config(run.config, NUM, dist.world())
    state, lines = TrainState.create(replace(run.setup, plan=plan), classes=run.classes), _Lines()
    batches = LocalBatches(run.loader, dist.rank(), dist.world())
    held_out = HeldOut(run.loader, run.test, Duration.parse("3st"))
    model = dist.data_parallel(state.method)
    fit(state, model, plan, batches, callbacks=[held_out, lines], reporter=LocalReporter())
    method: Any = state.method
    return {"lines": lines.found, "before": method.before, "inside": method.inside, "plain": method.plain}


def at_each_world(folder: str) -> dict[int, dict[str, Any] | None]:
    """`trained` on three ranks, on two of them and on one; None where this rank is not among them."""
    found: dict[int, dict[str, Any] | None] = {3: trained(), 2: None, 1: None}
    rank = dist.rank()
    torch_dist.destroy_process_group()
    for world in (2, 1):
        if rank < world:
            meet(folder, rank, world)
            found[world] = trained()
            torch_dist.destroy_process_group()
    meet(folder, rank, 3)
    return found


def meet(folder: str, rank: int, world: int) -> None:
    torch_dist.init_process_group("gloo", init_method=f"file://{folder}/{world}", rank=rank, world_size=world)


@pytest.fixture(scope="module")
def worlds(run_ranks: RunRanks) -> dict[int, list[dict[str, Any]]]:
    """What each rank found, by number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_ranks(3, at_each_world, folder)
    return {world: [found[world] for found in ranks if found[world] is not None] for world in (1, 2, 3)}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_held_out_image_counts_once_at_any_number_of_ranks(worlds: Any, world: int) -> None:
    places = torch.arange(NUM).double()
    assert len(worlds[world]) == world
    for rank in worlds[world]:
        measured = {step: line for step, line in rank["lines"].items() if line}
        assert list(measured) == [3, 4], "when it is due, and after the last step"
        for line in measured.values():
            assert line["heldout_index"] == places.mean().item()
            assert line["heldout_square"] == pytest.approx((places**2).mean().item(), rel=1e-14)
            assert line["heldout_some"] == 12.0, "the mean of 0, 2, ... 24"
            alone = worlds[1][0]["lines"][4]
            assert line == pytest.approx(alone, rel=1e-12, nan_ok=True), (
                "with the same views and numbers, at every measurement"
            )


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_is_drawn_before_an_epoch_is_the_same_on_every_rank(worlds: Any, world: int) -> None:
    before = [rank["before"] for rank in worlds[world]]
    assert before == [worlds[1][0]["before"]] * world
    assert len(set(before[0][0] + before[0][1])) == 6, "the second epoch draws anew, each generator its own numbers"
    inside = {number for rank in worlds[world] for number in rank["inside"]}
    assert len(inside) == 4 * world, "a step draws by rank"


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_the_plain_images_in_dataset_order(worlds: Any, world: int) -> None:
    for turn in range(4):
        shares = [rank["plain"][turn] for rank in worlds[world]]
        assert [place for share in shares for place in share] == list(range(NUM))
        assert {len(share) for share in shares} <= {NUM // world, NUM // world + 1}


def test_names_of_held_out_numbers_can_be_expected(caplog: pytest.LogCaptureFixture) -> None:
    expected = "train.expect={heldout_index: [0, 1000]}"
    run = prepare(load_config("quickstart", told("train.eval_every=1ep", expected)), check_benchmarks)
    assert run.has_held_out
    assert run.online_knn is None
    with pytest.raises(ConfigError, match=r"nothing will report 'heldout_indx'; did you mean 'heldout_index'\?"):
        prepare(
            load_config("quickstart", told("train.eval_every=1ep", "train.expect={heldout_indx: [0, 1]}")),
            check_benchmarks,
        )
    with pytest.raises(ConfigError, match="nothing will report 'heldout_index'"):
        prepare(load_config("quickstart", told(expected)), check_benchmarks)
    assert "train.eval_every is left out" not in caplog.text


def test_a_method_that_refuses_its_own_measurement_is_named_with_all_other_problems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(config: Any) -> tuple[str, ...]:
        raise ConfigError("method.task: it has none")

    monkeypatch.setattr(SimCLR, "evaluated_by", refuse)
    with pytest.raises(ConfigError) as refused:
        prepare(load_config("quickstart", words("train.eval_every=1ep", "optim.patch_lr_scale=0.2")), check_benchmarks)
    assert [line.partition("=")[0] for line in str(refused.value).splitlines()] == [
        "optim.patch_lr_scale",
        "method.task: it has none",
    ]


def test_what_is_measured_is_judged_by_the_settings_for_the_run_s_workers() -> None:
    seen = []

    def measure(config: Any, train: Any, test: Any) -> Measurements:
        seen.append(config.train.online_knn_every)
        return Measurements((), ())

    prepare(
        load_config("quickstart", words("train.workers=2", "train.reference_workers=1", "train.online_knn_every=10st")),
        measure,
    )
    assert seen == [Duration.parse("5st")]


def test_a_run_without_a_task_for_held_out_images_says_that_it_measures_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="raysl"):
        run = prepare(load_config("quickstart", words("train.eval_every=1ep")), check_benchmarks)
    assert not run.has_held_out
    assert run.test is None
    assert "train.eval_every is left out: simclr has no task for held-out images" in caplog.text
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    with caplog.at_level(logging.WARNING, logger="raysl"):
        run = prepare(
            load_config("quickstart", told("data=image_folder", f"data.path={tmp_path}", "train.eval_every=1ep")),
            check_benchmarks,
        )
    assert not run.has_held_out
    assert "the data has no held-out images; give data.test=" in caplog.text
