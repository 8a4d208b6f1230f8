"""DINOv3's three stages and its distillation, one after the other."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from raysl.checkpoint.tensors import load_tensors
from raysl.cli import app
from raysl.config.load import load_config

TINY = (
    *("data=digits", "data.limit=64", "data.image_size=16", "data.lanes=4", "benchmarks={}"),
    *("backbone.width=24", "backbone.depth=2", "backbone.heads=2", "backbone.patch_size=4"),
    *("train.batch_size=32", "train.epochs=1", "train.device=cpu", "train.online_knn_every=null", "optim.warmup=1st"),
    *("method.views.size=16", "method.views.local_size=8", "method.views.num_local=2"),
    *(
        f"method.{head}.{size}"
        for head in ("head", "patch_head")
        for size in ("num_prototypes=32", "hidden_dim=32", "bottleneck_dim=16")
    ),
)


def last_checkpoint(name: str) -> Path:
    return Path("runs", name, "checkpoint_000000002")


def part_of(name: str, part: str) -> dict[str, Tensor]:
    """Weights of a network that the method of a run holds."""
    state = load_tensors(last_checkpoint(name) / "train_state.pt")["method"]
    return {key.removeprefix(f"{part}."): value for key, value in state.items() if key.startswith(f"{part}.")}


def assert_same(networks: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    assert networks.keys() == others.keys()
    assert [name for name, value in networks.items() if not torch.equal(value, others[name])] == []


def test_stages_of_dino_v3_have_the_network_and_the_batch_of_the_first() -> None:
    first = load_config("dino_v3", ["data.path=/images"])
    for stage in ("gram", "high_res"):
        config: Any = load_config(f"continue/dino_v3_{stage}", ["data.path=/images"])
        assert config.train.batch_size == first.train.batch_size == 2048
        assert config.train.warm_heads is None
        assert dataclasses.replace(config.backbone, rope_rescale=1.0, image_size=224) == first.backbone


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_each_stage_goes_on_from_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        ("dino_v3", "name=first"),
        ("continue/dino_v3_gram", "name=second", "method.weights=runs/first", "method.gram_size=32"),
        (
            *("continue/dino_v3_high_res", "name=third", "method.weights=runs/second"),
            *("method.gram_size=48", "method.views.size=32"),
        ),
        ("continue/dino_v3_distill", "name=small", "method.teacher=runs/third", "backbone.num_registers=1"),
    ):
        name, *others = words
        code = app(["pretrain", name, *TINY, *others], prog_name="raysl", standalone_mode=False)
        assert not code, words
    for stage in ("second", "third", "small"):
        assert load_config(f"runs/{stage}/run.yaml").backbone.rope_rescale == 2.0  # type: ignore[attr-defined]
    exported = load_file(last_checkpoint("first") / "backbone.safetensors")
    for stage in ("second", "third"):
        assert_same(part_of(stage, "gram_teacher.module"), exported)
    assert_same(part_of("small", "trained.backbone"), load_file(last_checkpoint("third") / "backbone.safetensors"))
    for head in ("head", "patch_head"):
        assert_same(part_of("small", f"trained.{head}"), part_of("third", f"teacher_{head}.module"))
