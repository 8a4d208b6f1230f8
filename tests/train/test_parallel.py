"""Weights and the optimizer's state that are spread over ranks end as those that every rank has whole."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.methods.properties import small
from tests.rank_processes import RunRanks
from tests.runs.parallel_runs import tensors_of, trained

CASES: dict[str, tuple[str, ...]] = {
    "simclr": ("optim=lars", "optim.lr=0.1"),
    "swav": ("train.accumulate=2", "train.batch_size=24", "data.lanes=12", "method.queue_length=48"),
    "dino": (
        "optim=larc",
        "optim.lr=0.1",
        "train.recompute=[res3]",
        "train.clip_grad=0.01",
        "train.clip_grad_over=tensor",
    ),
    "mae": ("train.clip_grad=0.1",),
    "spark": ("optim=lamb", "optim.lr=0.01", "method.decoder_width=16"),
}
"""Methods with a head of their own, prototypes, a teacher, tokens, sparse convolutions; optimizers and clipping by
whole tensors' norms."""


def spread(name: str, folder: str) -> dict[str, Any]:
    """A case over 10 steps in each way: what a checkpoint keeps, and how many of the weights a rank holds."""
    found: dict[str, Any] = {}
    for kind in ("ddp", "zero1", "fsdp"):
        run = small(name, f"train.parallel={kind}", "train.workers=2", "train.epochs=5", *CASES[name])
        assert run.setup.plan.total_steps >= 10
        state = trained(run, Path(folder, kind))
        held = sum(dist.local(p).numel() for p in state.method.parameters())
        found[kind] = {"tensors": tensors_of(state), "held": held, "exported": state.exported().state_dict()}
    return found


def gone_on(name: str, kinds: list[str], folder: str) -> list[dict[str, Tensor]]:
    """The ends of runs, on the ranks that are there, from a checkpoint made with shares at two ranks."""
    start = sorted(Path(folder, "fsdp").glob("checkpoint_*"))[1]
    found = []
    for kind in kinds:
        words = [f"train.parallel={kind}", f"train.workers={dist.world()}", "train.uneven=true", "train.epochs=5"]
        run = small(name, *words, *CASES[name])
        found.append(tensors_of(trained(run, Path(folder, f"{kind}-{dist.world()}"), start)))
    return found


@dataclass
class Spread:
    """A case, where its checkpoints are, and what its ranks gave."""

    name: str
    folder: str
    ranks: list[dict[str, Any]]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name == "dino" else pytest.mark.slow) for name in CASES],
)
def case(request: pytest.FixtureRequest, run_ranks: RunRanks) -> Iterator[Spread]:
    with tempfile.TemporaryDirectory() as folder:
        yield Spread(request.param, folder, run_ranks(2, spread, request.param, folder, timeout=200))


@pytest.mark.parametrize("kind", ["zero1", "fsdp"])
def test_ten_steps_end_as_with_ddp(case: Spread, kind: str) -> None:
    assert_close(case.ranks[0][kind]["tensors"], case.ranks[0]["ddp"]["tensors"])


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], most: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    apart = {key: float((found[key].double() - value.double()).abs().max()) for key, value in expected.items()}
    assert {key: value for key, value in apart.items() if not value <= most} == {}


def test_a_rank_holds_its_share(case: Spread) -> None:
    whole = case.ranks[0]["ddp"]["held"]
    for rank in case.ranks:
        assert rank["zero1"]["held"] == whole
        assert rank["fsdp"]["held"] < 0.6 * whole
    assert sum(rank["fsdp"]["held"] for rank in case.ranks) == whole


def test_what_is_measured_is_whole_on_every_rank(case: Spread) -> None:
    for rank in case.ranks:
        assert_close(rank["fsdp"]["exported"], case.ranks[0]["ddp"]["exported"], 1e-6)  # float32


def test_a_checkpoint_of_shares_goes_on_at_three_ranks_as_with_ddp(case: Spread, run_ranks: RunRanks) -> None:
    whole, *others = run_ranks(3, gone_on, case.name, ["ddp", "zero1", "fsdp"], case.folder, timeout=200)[0]
    for other in others:
        assert_close(other, whole)


def test_a_checkpoint_of_shares_goes_on_in_one_process(case: Spread) -> None:
    (alone,) = gone_on(case.name, ["ddp"], case.folder)
    assert_close(alone, case.ranks[0]["ddp"]["tensors"], 1e-6)


def overflowing() -> list[float]:
    """The weights of a layer after an update with a gradient that is infinite in the share of one rank alone."""
    layer = nn.Linear(2, 4, bias=False)
    nn.init.ones_(layer.weight)
    dist.shard(layer, [], torch.device("cpu"))
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=1.0), torch.amp.GradScaler("cpu", init_scale=2.0)
    out = layer(torch.ones(1, 2))
    scaler.scale((out * torch.tensor([1.0, 1.0, 1.0, 3e38])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return [float(dist.local(layer.weight).sum()), scaler.get_scale()]


def test_an_overflow_in_one_ranks_share_leaves_out_the_update_of_all(run_ranks: RunRanks) -> None:
    assert run_ranks(2, overflowing) == [[4.0, 1.0]] * 2


class Scales(Callback):
    """Notes the scale of the loss after each step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.seen.append(run.state.scaler.get_scale())


def in_fp16(optimizer: str) -> dict[str, Any]:
    """The scales of a run in fp16 whose first steps overflow, and its weights before and after, in each way."""
    found: dict[str, Any] = {}
    for kind in ("ddp", "fsdp"):
        words = ("train.precision=fp16", f"optim={optimizer}", "optim.lr=0.01", "train.clip_grad=1.0")
        run = small("simclr", f"train.parallel={kind}", "train.workers=2", "train.log_every=100st", *words)
        state, scales = TrainState.create(run.setup, classes=run.classes), Scales()
        state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-8, growth_interval=3)
        before = tensors_of(state)
        stream = LocalBatches(run.loader, dist.rank(), dist.world())
        with tempfile.TemporaryDirectory() as folder:
            reporter = LocalReporter(Path(folder))
            wrapped = dist.data_parallel(state.method)
            fit(state, wrapped, run.setup.plan, stream, callbacks=[scales], reporter=reporter)
        found[kind] = {"scales": scales.seen, "before": before, "after": tensors_of(state)}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb", "lars", "larc"])
def test_shares_in_fp16_leave_out_the_steps_that_ddp_leaves_out(optimizer: str, run_ranks: RunRanks) -> None:
    first, second = run_ranks(2, in_fp16, optimizer, timeout=200)
    scales = first["ddp"]["scales"]
    assert scales[0] == 2.0**32
    assert max(scales[-3:]) < 2.0**32
    assert scales == second["ddp"]["scales"] == first["fsdp"]["scales"] == second["fsdp"]["scales"]
    weights = {name: value for name, value in first["ddp"]["after"].items() if name.startswith("method.backbone")}
    assert any(not torch.equal(value, first["ddp"]["before"][name]) for name, value in weights.items())
    assert_close({name: first["fsdp"]["after"][name] for name in weights}, weights, 1e-2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["train.parallel=fsdp"],
            r"parallel=fsdp shares memory between workers, and there is 1; set train.w",
        ),
        (["train.parallel=zero1"], "train.parallel=zero1 shares memory between workers, and there is 1"),
        (["train.parallel=fsdp", "train.workers=2", "train.bucket_mb=9"], r"bucket_mb is an option of ddp and zero1"),
        (["train.parallel=fsdp", "train.workers=2", "train.channels_last=true"], "channels_last=true does not go"),
        (
            ["train.parallel=fsdp", "train.workers=2", "train.eval_every=1ep"],
            "train.eval_every tries the method",
        ),
        (
            ["train.recompute=[res2, res9]"],
            "no stage 'res9' to compute again in this backbone; choose from r",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_a_worker_starts(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(load_config("digits/simclr", words))


def test_a_method_that_looks_at_all_images_between_epochs_is_refused_shares() -> None:
    with pytest.raises(ConfigError, match=r"DeepClusterV2 looks at all images between epochs"):
        prepare(load_config("digits/deepcluster_v2", ["train.parallel=fsdp", "train.workers=2"]))
