"""Patches that are left out in a part of a run: `train.patch_drop`."""

import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.nn.backbones.vit import ViT
from raysl.nn.drop_path import drop_slots, keyed_draws
from raysl.nn.patch_drop import PatchDrop
from raysl.plan.setup import Setup
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.patch_drops import PatchDrops, drop_stages
from raysl.train.prepare import Prepared, prepare
from raysl.train.state import TrainState
from raysl.train.view_stages import stage_steps
from tests.runs.runs import assert_same

SMALL = [
    "data=synthetic",
    "data.image_size=16",
    "data.num_train=48",
    "data.num_test=1",
    "train.batch_size=16",
    "train.epochs=4",
]
NARROW = ["method.hidden_dim=32", "method.output_dim=16"]
HEADS = {"byol": NARROW, "dino": ["method.head.hidden_dim=32", "method.head.num_prototypes=64"], "moco_v3": NARROW}
NANO = ["backbone=vit", "backbone.mask_token=true", "backbone.width=16", "backbone.depth=2", "backbone.patch_size=4"]


def settings(drop: str, method: str = "simclr", more: Sequence[str] = NANO) -> RunConfig:
    common = ["benchmarks=[]", "views=null", "train.online_knn_every=null", f"method={method}", *HEADS.get(method, [])]
    return load_config("quickstart", [*common, *SMALL, *more, f"train.patch_drop={drop}"])


class Patches(Callback):
    """Keeps the patches of each step's passes through the trained backbone, and their numbers in the teacher's."""

    def __init__(self, backbone: ViT) -> None:
        super().__init__()
        self.steps: list[list[torch.Tensor]] = [[]]
        backbone.patch_drop.register_forward_hook(lambda _module, _inputs, keep: self.steps[-1].append(keep))

    def on_step_end(self, run: Run, step: object, out: object) -> None:
        self.steps.append([])


def _train(run: Prepared, folder: Path) -> tuple[TrainState, list[list[torch.Tensor]]]:
    """Train to the end, from the newest checkpoint of the folder on; return the kept patches of each step too."""
    state, reporter = TrainState.create(run.setup), LocalReporter(folder, keep=9, show_progress=False)
    if (restored := reporter.restore()) is not None:
        state.load(restored)
    patches = Patches(state.method.backbone)  # type: ignore[arg-type]
    fit(state, state.method, run.setup.plan, LocalBatches(run.loader), callbacks=[patches], reporter=reporter)
    return state, patches.steps[:-1]


@pytest.mark.thorough
def test_each_epoch_leaves_out_the_share_of_its_stage(tmp_path: Path) -> None:
    run = prepare(settings("{0%: 0.5, 30%: 0.75, 75%: 0}"))
    _, steps = _train(run, tmp_path)
    # 30 % of 4 epochs lies inside the second one, so the stage begins with the third
    assert [[keep.shape[1] for keep in step] for step in steps] == [[8]] * 6 + [[4]] * 3 + [[]] * 3
    assert run.drops.describe() == (
        "patches left out in training: 50% from epoch 0 on, 75% from epoch 2 on, 0% from epoch 3 on"
    )


@pytest.mark.thorough
def test_patches_of_a_view_belong_to_its_sample(tmp_path: Path) -> None:
    run = prepare(settings("{0%: 0.5}"))
    _, steps = _train(run, tmp_path)
    for step, batch in enumerate(islice(LocalBatches(run.loader).from_step(0), 12)):
        drop = run.setup.config.backbone.depth * 2 + 5
        uniforms = batch.random("drop path").at(drop).uniforms(2)  # [B, V]
        (keep,) = steps[step]
        for row, number in enumerate(uniforms.reshape(-1)):
            assert torch.equal(keep[row], _drawn(number, 16, 8))
    assert not torch.equal(steps[0][0], steps[3][0]), "the same sample, in another epoch"


def _drawn(number: float, num_patches: int, num_kept: int) -> torch.Tensor:
    """Return what `number` keeps: the patches whose hashes are smallest."""
    key, words = int(number * 2**53), []
    for patch in range(num_patches):
        state = key ^ _mix(patch + 0x9E3779B97F4A7C15)
        words.append(_mix(state) >> 11)
    return torch.from_numpy(np.sort(np.argsort(words, kind="stable")[:num_kept]))


def _mix(word: int) -> int:
    """Return the finaliser of SplitMix64."""
    word &= 2**64 - 1
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return word ^ (word >> 31)


@pytest.mark.thorough
def test_a_run_that_goes_on_in_any_stage_ends_in_the_same_bits(tmp_path: Path) -> None:
    run = prepare(settings("{0%: 0.5, 50%: 0}", "moco_v3", [*NANO, "train.checkpoint_every=2st"]))
    whole, _ = _train(run, tmp_path / "whole")
    for step in (4, 6, 8):
        name = f"checkpoint_{step:09}"
        shutil.copytree(tmp_path / "whole" / name, tmp_path / f"from {step}" / name)
        again, _ = _train(run, tmp_path / f"from {step}")
        assert_same(whole.method.state_dict(), again.method.state_dict())


@pytest.mark.thorough
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_keep_the_patches_of_one_process(world: int) -> None:
    run = prepare(settings("{0%: 0.5}", more=[*NANO, "data.lanes=4"]))
    drop = PatchDrop(slot=9)

    def kept(rank: int, world: int) -> torch.Tensor:
        batch = next(LocalBatches(run.loader, rank, world).from_step(4))
        with run.drops.dropping(run.setup.plan.step(4)), keyed_draws(batch, drop_slots(drop)):
            return drop(batch.views["global"].flatten(0, 1), 16)

    assert torch.equal(torch.cat([kept(rank, world) for rank in range(world)]), kept(0, 1))


@pytest.mark.thorough
@pytest.mark.parametrize("more", [[], ["data.exact_below=1", "data.lanes=4", "data.is_random_access=false"]])
def test_images_and_views_are_those_without_the_setting(more: list[str]) -> None:
    some, every = (prepare(settings(drop, more=[*NANO, *more])).loader for drop in ("{0%: 0.5}", "null"))
    for one, other in islice(zip(LocalBatches(some).from_step(2), LocalBatches(every).from_step(2), strict=False), 3):
        assert torch.equal(one.index, other.index)
        assert torch.equal(one.views["global"], other.views["global"])


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["byol", "dino", "moco_v3"])
def test_the_teacher_sees_all_patches(method: str) -> None:
    views = ["method.views.num_local=1", "method.views.local_size=8"] if method == "dino" else []
    run = prepare(settings("{0%: 0.5}", method, [*NANO, "method.views.size=16", *views]))
    state = TrainState.create(run.setup)
    lengths: dict[str, list[int]] = {}
    for name, module in state.method.named_modules():
        if isinstance(module, ViT):
            module.blocks[0].register_forward_hook(
                lambda _m, inputs, _out, name=name: lengths.setdefault(name, []).append(inputs[0].shape[1] - 1)
            )
    batch = next(LocalBatches(run.loader).from_step(0))
    with run.drops.dropping(run.setup.plan.step(0)):
        state.method(batch, run.setup.plan.step(0))
    student, teacher = lengths.pop("backbone"), lengths.popitem()[1]
    assert student == ([8, 2] if method == "dino" else [8, 8])
    assert set(teacher) == {16}


@pytest.mark.thorough
def test_features_outside_of_a_step_are_of_all_patches(tmp_path: Path) -> None:
    run = prepare(settings("{0%: 0.5}"))
    state, _ = _train(run, tmp_path)
    drop = state.method.backbone.get_submodule("patch_drop")
    assert isinstance(drop, PatchDrop)
    assert drop.training
    assert not drop.is_dropping


@pytest.mark.thorough
def test_it_goes_with_smaller_views(tmp_path: Path) -> None:
    run = prepare(settings("{0%: 0.5, 75%: 0}", more=[*NANO, "train.view_scale={0%: 0.5, 50%: 1}"]))
    _, steps = _train(run, tmp_path)
    assert [[keep.shape[1] for keep in step] for step in steps] == [[2]] * 6 + [[8]] * 3 + [[]] * 3
    stages = drop_stages(run.loader.stages, run.drops.shares, run.loader.recipe)
    assert [(first, recipe.size, share) for first, (recipe, share) in stages] == [(0, 8, 0.5), (2, 16, 0.5), (3, 16, 0)]
    assert stage_steps(stages, run.setup.plan) == [6, 3, 3]


def test_the_loop_refuses_a_backbone_without_patches() -> None:
    config = settings("{0%: 0.5}", more=[])
    setup = Setup.of(config, num_samples=48)
    with pytest.raises(ConfigError, match=r"leaves out patches of backbone=vit, and backbone.name=resnet"):
        PatchDrops.of(setup, setup.plan, TrainState.create(setup).method.backbone)


RULE = "train.patch_drop is for methods that take one feature of each whole view, .*; leave it out for"


@pytest.mark.parametrize(
    ("drop", "method", "more", "message"),
    [
        ("{50%: 0}", "simclr", NANO, r"no stage begins with the run; add 0%, such as \{0%: 0.5, 50%: 0\}"),
        ("{0%: 0.5, 99%: 0}", "simclr", NANO, "none of the 4 epochs begins at 99% or later; give an earlier point"),
        ("{0%: 0.5, 30%: 0.7, 2ep: 0}", "simclr", NANO, "two stages would begin with epoch 2"),
        ("{0st: 0.5}", "simclr", NANO, "patch_drop: 0st is in updates; give a share of the run"),
        ("{0%: 1}", "simclr", NANO, r"1.0 is out of range; give a number in \[0, 1\)"),
        ("{0%: 0.5}", "simclr", [], "and backbone.name=resnet does not take a part of them; set backbone=vit, or"),
        ("{0%: 0.5}", "mae", NANO, f"{RULE} mae, which masks patches itself"),
        ("{0%: 0.5}", "ibot", NANO, f"{RULE} ibot, which masks patches itself"),
        ("{0%: 0.5}", "dino_v2", NANO, f"{RULE} dino_v2, which masks patches itself"),
        ("{0%: 0.5}", "densecl", NANO, f"{RULE} densecl, which reads single patches"),
        ("{0%: 0.5}", "vicregl", NANO, f"{RULE} vicregl, which reads single patches"),
        ("{0%: 0.5}", "simclr", [*NANO, "train.compile=step", "train.cuda_graphs=true"], "set train.cuda_graphs=false"),
    ],
)
def test_what_does_not_fit_is_refused(drop: str, method: str, more: list[str], message: str) -> None:
    views = ["method.views.size=16", "method.views.local_size=8"] if method in ("ibot", "dino_v2") else []
    with pytest.raises(ConfigError, match=message):
        prepare(settings(drop, method, [*more, *views]))
