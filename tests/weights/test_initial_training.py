"""A run goes on from a file of weights of others by one call, from Python, and again by the same call."""

from pathlib import Path
from typing import Any

import pytest

import raysl
from raysl.checkpoint.checkpoint_folder import read_meta
from raysl.storage.folder import Folder
from tests.weights.networks import saved
from tests.weights.test_dino_v3 import eva

pytestmark = pytest.mark.cluster

HEADS = [f"method.{head}.{key}" for head in ("head", "patch_head") for key in ("hidden_dim=16", "num_prototypes=32")]
SMALL = [
    *("data=digits", "name=own", "data.limit=200", "data.image_size=32", "backbone.drop_path=0", "benchmarks={}"),
    *("method.views.size=32", "method.views.local_size=16", "method.freeze_last_layer=1st", *HEADS),
    *("train.workers=1", "train.batch_size=50", "train.epochs=1", "train.warm_heads=1st", "optim.warmup=1st"),
    *("train.online_knn_every=1ep", "train.precision=fp32", "train.threads=1"),
]


def test_dino_v3_goes_on_from_a_file_and_again_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(eva(width=32, depth=2).state_dict(), tmp_path / "dinov3_tiny.pth")

    def begin() -> Any:
        config = raysl.load_config("continue/dino_v3", [*SMALL, f"method.weights={path}"])
        return raysl.pretrain(config, show_progress=False)

    result = begin()
    backbone: Any = raysl.load_backbone(result.path)
    assert (backbone.config.width, backbone.config.depth, backbone.config.position) == (32, 2, "rope")
    accuracies = result.history["knn_k20_top1"].dropna()
    assert list(result.history.loc[accuracies.index, "step"]) == [0, result.metrics["step"]]
    assert accuracies.between(10, 100, inclusive="neither").all(), "above chance before and after"
    origin = read_meta(Folder(result.checkpoint))["weights"]
    assert (origin["method"], Path(origin["uri"]).parents[1]) == ("imported", tmp_path / "runs")
    again = begin()
    assert (again.checkpoint, again.metrics["step"]) == (result.checkpoint, result.metrics["step"])
