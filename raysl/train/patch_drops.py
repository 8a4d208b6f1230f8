"""Patches that are left out in a part of the run, `train.patch_drop`: cheaper training that ends with all patches."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor, nn

from raysl.components import Classes
from raysl.data.stream.loader import Stages
from raysl.errors import ConfigError
from raysl.nn.drop_path import draw_numbers, numbers_from
from raysl.nn.patch_drop import NeedsAllPatches, PatchDrop, dropping_patches
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.process.screen import only_errors
from raysl.schedule import Step
from raysl.train.epoch_stages import epoch_stages
from raysl.train.rehearsal import rehearse, silent_shapes
from raysl.transforms import ViewRecipe

Shares = tuple[tuple[int, float], ...]
"""Shares of left-out patches by stages of a run, each with its first epoch, the first of which is 0."""


@dataclass(frozen=True)
class PatchDrops:
    """Leaves out patches in the steps of a run, as `train.patch_drop` says.

    Nothing has to be stored: the share belongs to the epoch of a step, and the patches to its samples.

    Args:
        shares: shares by stage; none where all patches stay.
    """

    shares: Shares = ()

    @classmethod
    def of(cls, setup: Setup, plan: TrainPlan, backbone: nn.Module) -> "PatchDrops":
        """Return those of a run.

        Raises:
            ConfigError: if the stages do not fit the run, or the backbone cannot leave out patches.
        """
        course = setup.config.train.patch_drop
        if not course:
            return cls()
        if _patch_drop_of(backbone) is None:
            raise ConfigError(
                f"train.patch_drop leaves out patches of backbone=vit, and backbone.name={setup.config.backbone.name} "
                "does not take a part of them; set backbone=vit, or leave train.patch_drop out"
            )
        return cls(epoch_stages("train.patch_drop", course, plan))

    def share_at(self, epoch: int) -> float:
        """Return the share of the patches that an epoch leaves out.

        >>> [PatchDrops(((0, 0.5), (9, 0.0))).share_at(epoch) for epoch in (0, 8, 9)]
        [0.5, 0.5, 0.0]
        """
        return next((share for first, share in reversed(self.shares) if epoch >= first), 0.0)

    def dropping(self, step: Step) -> AbstractContextManager[None]:
        """Leave out patches during the update that begins at `step`."""
        return dropping_patches(self.share_at(step.epoch))

    def describe(self) -> str | None:
        """Return the shares in words; None if all patches stay."""
        if not self.shares:
            return None
        parts = [f"{share:.0%} from epoch {first} on" for first, share in self.shares]
        return f"patches left out in training: {', '.join(parts)}"


def check_patch_drop(setup: Setup, classes: Classes, recipe: ViewRecipe) -> PatchDrops:
    """Return the left-out patches of a run; a step on shapes alone shows that its method can do without them.

    Args:
        recipe: views of full size.

    Raises:
        ConfigError: if the stages do not fit the run, or the method or the backbone need all patches.
    """
    train, name = setup.config.train, setup.config.method.name
    network = classes.backbone.without_weights(setup.config.backbone)
    drops = PatchDrops.of(setup, setup.plan, network)
    most = max((share for _, share in drops.shares), default=0.0)
    if most == 0:
        return drops
    rule = (
        "train.patch_drop is for methods that take one feature of each whole view, such as simclr, dino or moco_v3; "
        f"leave it out for {name}"
    )
    if classes.method.targets(setup) is not None:
        raise ConfigError(f"{rule}, which makes images with targets and no views")
    if classes.method.mask(setup) is not None:
        raise ConfigError(f"{rule}, which masks patches itself")
    if train.cuda_graphs:
        raise ConfigError("train.patch_drop: a recorded step has one number of patches; set train.cuda_graphs=false")
    try:
        has_dropped = _rehearse(setup, classes, recipe, most, _patch_drop_of(network))
    except NeedsAllPatches as error:
        raise ConfigError(f"{rule}, which reads single patches") from error
    if not has_dropped:
        raise ConfigError(f"{rule}, whose step does not pass views through the trained backbone")
    return drops


def drop_stages(stages: Stages, shares: Shares, recipe: ViewRecipe) -> tuple[tuple[int, tuple[ViewRecipe, float]], ...]:
    """Return the views and the share of left-out patches of each stage of a run, with its first epoch.

    Args:
        stages: views by stage; none for those of `recipe` throughout.
        shares: shares by stage; none where all patches stay.
    """
    views, drops = stages or ((0, recipe),), shares or ((0, 0.0),)
    firsts = sorted({first for first, _ in views} | {first for first, _ in drops})

    def at(first: int) -> tuple[ViewRecipe, float]:
        return (
            next(value for start, value in reversed(views) if start <= first),
            next(value for start, value in reversed(drops) if start <= first),
        )

    return tuple((first, at(first)) for first in firsts)


def _patch_drop_of(backbone: nn.Module) -> PatchDrop | None:
    """Return the module of a backbone that chooses patches, or None."""
    return next((module for module in backbone.modules() if isinstance(module, PatchDrop)), None)


def _rehearse(setup: Setup, classes: Classes, recipe: ViewRecipe, share: float, drop: PatchDrop | None) -> bool:
    """Run a step on shapes alone without a share of the patches, and return whether patches were chosen."""
    slots: set[int] = set()

    def record(x: Tensor, slot: int) -> Tensor:
        slots.add(slot)
        return draw_numbers(x, slot)

    with only_errors(), silent_shapes(), numbers_from(record), dropping_patches(share):
        rehearse(setup, classes, recipe)
    return drop is not None and drop.slot in slots
