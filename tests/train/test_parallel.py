"""Weights and the optimizer's state that are spread over ranks end as those that every rank has whole."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl import dist
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.train.prepare import prepare
from tests.distributed import run_ranks
from tests.methods.properties import small
from tests.train.parallel_runs import tensors_of, trained

CASES = {
    "simclr": ("optim=lars", "optim.lr=0.1"),
    "swav": ("train.accumulate=2",),
    "dino": ("optim=larc", "optim.lr=0.1", "train.recompute=[res3]"),
    "mae": ("train.clip_grad=0.1",),
}
"""Methods with a head of their own, prototypes, a teacher, tokens; optimizers with norms over whole tensors."""


def spread(kind: str, folder: str) -> dict[str, Any]:
    """Each case over 10 steps: all that a checkpoint keeps, and the share of the weights that a rank holds."""
    found: dict[str, Any] = {}
    for name, words in CASES.items():
        run = small(name, f"train.parallel={kind}", "train.workers=2", "train.epochs=5", *words)
        assert run.setup.plan.total_steps >= 10
        state = trained(run, Path(folder, kind, name))
        held = sum(dist.local(p).numel() for p in state.method.parameters())
        weights = state.exported().state_dict()
        found[name] = {"tensors": tensors_of(state), "held": held, "exported": weights}
    return found


def on_two_ranks(folder: str) -> dict[str, Any]:
    return {kind: spread(kind, folder) for kind in ("ddp", "zero1", "fsdp")}


def gone_on(kinds: list[str], folder: str) -> list[dict[str, Tensor]]:
    """The ends of runs, on the ranks that are there, from a checkpoint made with shares at two ranks."""
    start = sorted(Path(folder, "fsdp", "simclr").glob("checkpoint_*"))[1]
    found = []
    for kind in kinds:
        words = [f"train.parallel={kind}", f"train.workers={dist.world()}", "train.uneven=true", "train.epochs=5"]
        words += CASES["simclr"]
        found.append(tensors_of(trained(small("simclr", *words), Path(folder, f"{kind}-{dist.world()}"), start)))
    return found


@pytest.fixture(scope="module")
def folder() -> Any:
    with tempfile.TemporaryDirectory() as made:
        yield made


@pytest.fixture(scope="module")
def ranks(folder: str) -> list[dict[str, Any]]:
    return run_ranks(2, on_two_ranks, folder, timeout=200)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["zero1", "fsdp"])
def test_ten_steps_end_as_with_ddp(ranks: list[dict[str, Any]], kind: str, name: str) -> None:
    assert_close(ranks[0][kind][name]["tensors"], ranks[0]["ddp"][name]["tensors"])


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], most: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    apart = {key: float((found[key].double() - value.double()).abs().max()) for key, value in expected.items()}
    assert {key: value for key, value in apart.items() if not value <= most} == {}


@pytest.mark.parametrize("name", CASES)
def test_a_rank_holds_its_share(ranks: list[dict[str, Any]], name: str) -> None:
    whole = ranks[0]["ddp"][name]
    for rank in ranks:
        assert rank["zero1"][name]["held"] == whole["held"]
        assert rank["fsdp"][name]["held"] < 0.6 * whole["held"]
    assert sum(rank["fsdp"][name]["held"] for rank in ranks) == whole["held"]


@pytest.mark.parametrize("name", CASES)
def test_what_is_measured_is_whole_on_every_rank(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        assert_close(rank["fsdp"][name]["exported"], ranks[0]["ddp"][name]["exported"], 1e-6)  # float32


def test_a_checkpoint_of_shares_goes_on_at_three_ranks_as_with_ddp(ranks: list[dict[str, Any]], folder: str) -> None:
    whole, *others = run_ranks(3, gone_on, ["ddp", "zero1", "fsdp"], folder, timeout=120)[0]
    for other in others:
        assert_close(other, whole)


def test_a_checkpoint_of_shares_goes_on_in_one_process(ranks: list[dict[str, Any]], folder: str) -> None:
    (alone,) = gone_on(["ddp"], folder)
    assert_close(alone, ranks[0]["ddp"]["simclr"]["tensors"])


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


def test_an_overflow_in_one_ranks_share_leaves_out_the_update_of_all() -> None:
    assert run_ranks(2, overflowing) == [[4.0, 1.0]] * 2


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
