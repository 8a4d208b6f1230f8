"""A step of the recipes for ImageNet, at their networks and image sizes, on a batch of a few synthetic images."""

import pytest

from raysl.config.load import load_config
from raysl.train.prepare import Prepared, prepare
from tests.fake_gpu.pretended import needs_pretended_gpu
from tests.fake_gpu.training import on_gpu, trained_run
from tests.fake_gpu.watch import TO_GPU_PAGEABLE
from tests.methods.properties import METHODS

pytestmark = [needs_pretended_gpu, pytest.mark.slow]

SETTINGS = (
    "data=synthetic",
    "data.image_size=224",
    "data.num_train=24",
    "data.lanes=4",
    "train.batch_size=8",
    "train.epochs=1",
    "train.log_every=100st",
    "train.checkpoint_every=100st",
    "train.online_knn_every=null",
    "optim.warmup=1st",
    "optim.lr_scaling=none",
    "benchmarks={}",
)
FEW_IMAGES = {
    "clusterfit": ("method.clusters=5",),
    "deepcluster": ("method.clusters=5",),
    "deepcluster_v2": ("method.clusters=5",),
    "distill": ("method.teacher=untrained", "method.target=features", "method.label_weight=0"),
    "salt": ("method.teacher=untrained",),
    "swav": ("method.prototypes=5",),
    "swav_momentum": ("method.prototypes=5",),
    "wmse": ("method.output_dim=4",),
}
"""Settings that 24 images allow."""


def imagenet(name: str, *words: str) -> Prepared:
    return on_gpu(prepare(load_config(name, [*SETTINGS, *FEW_IMAGES.get(name, ()), *words])))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", METHODS)
def test_a_step_of_the_recipe_waits_for_nothing(name: str, precision: str) -> None:
    seen = trained_run(imagenet(name, f"train.precision={precision}"), is_saved=False)
    assert seen.stay == []
    assert seen.watch.errors == []
    assert [event for event in seen.in_steps() if event.is_wait or event.kind == TO_GPU_PAGEABLE] == []
