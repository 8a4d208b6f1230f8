"""Smaller views for a part of the run, `train.view_scale`: cheaper training that ends at full size."""

import logging
import math
from dataclasses import replace

from raysl.components import Classes
from raysl.config.linked import view_size_override
from raysl.config.load import apply_overrides
from raysl.data.stream.loader import Stages
from raysl.errors import ConfigError
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.process.screen import only_errors
from raysl.schedule import Duration
from raysl.train.rehearsal import rehearse
from raysl.transforms import ViewRecipe


def view_stages(setup: Setup, classes: Classes, recipe: ViewRecipe) -> Stages:
    """Return the views of each stage of `train.view_scale`, with its first epoch; nothing if views keep their size.

    Args:
        recipe: views of full size.

    Raises:
        ConfigError: if the stages do not fit the run, or the method or the backbone do not take views of these sizes.
    """
    scales = setup.config.train.view_scale
    if not scales:
        return ()
    if classes.method.targets(setup) is not None:
        raise ConfigError(f"train.view_scale: {setup.method.name} makes images with targets and no views; leave it out")
    if setup.config.train.cuda_graphs:
        raise ConfigError("train.view_scale: a recorded step has views of one size; set train.cuda_graphs=false")
    firsts = _first_epochs(setup, scales)
    return tuple(
        (first, recipe if scale == 1 else _scaled_recipe(setup, classes, scale))
        for first, scale in sorted(zip(firsts, scales.values(), strict=True))
    )


def describe_stages(stages: Stages) -> str | None:
    """Return the sizes of the views in words; None if they keep their size."""
    if not stages:
        return None
    sides = ["/".join(str(views[0].size) for views in recipe.groups.values()) for _, recipe in stages]
    parts = [f"{side} px from epoch {first} on" for side, (first, _) in zip(sides, stages, strict=True)]
    return f"views of {', '.join(parts)}"


def stage_steps(stages: Stages, plan: TrainPlan) -> list[int]:
    """Return the number of updates of each stage."""
    ends = [first * plan.epoch_len for first, _ in stages[1:]] + [plan.total_steps]
    return [end - first * plan.epoch_len for (first, _), end in zip(stages, ends, strict=True)]


def _first_epochs(setup: Setup, scales: dict[str, float]) -> list[int]:
    """Return the epoch with which each stage begins, in the order of the settings."""
    plan = setup.plan
    lengths = [Duration.parse(start).length(plan.total_steps, plan.epoch_len) / plan.epoch_len for start in scales]
    firsts = [math.ceil(length - 1e-9) for length in lengths]
    if 0 not in firsts:
        raise ConfigError(
            f"train.view_scale: no stage begins with the run; add 0%, such as {{0%: 0.5, {next(iter(scales))}: 1}}"
        )
    num_epochs = -(-plan.total_steps // plan.epoch_len)
    for start, first in zip(scales, firsts, strict=True):
        if first >= num_epochs:
            raise ConfigError(
                f"train.view_scale: sizes change where an epoch begins, and none of the {num_epochs} epochs begins at "
                f"{start} or later; give an earlier point, or more train.epochs"
            )
        if firsts.count(first) > 1:
            raise ConfigError(f"train.view_scale: two stages would begin with epoch {first}; leave one of them out")
    return firsts


def _scaled_recipe(setup: Setup, classes: Classes, scale: float) -> ViewRecipe:
    """Return the views of a method whose sizes are scaled; a step on shapes alone shows that it takes them."""
    config = setup.config
    scaled = apply_overrides(config, [view_size_override(config, scale)])
    smaller = replace(setup, config=replace(config, method=scaled.method))
    try:
        recipe: ViewRecipe = classes.method.all_views(smaller)
        for side in sorted({view.size for views in recipe.groups.values() for view in views}):
            classes.backbone.check_side(config.backbone, side)
    except ValueError as error:  # ConfigErrors are ValueErrors
        raise ConfigError(f"train.view_scale: {scale:g}: {error}") from error
    shapes_log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, shapes_log.disabled = shapes_log.disabled, True  # it would print a traceback before the message below
    try:
        with only_errors():
            rehearse(setup, classes, recipe)
    except (ValueError, RuntimeError, TypeError, AssertionError, IndexError) as error:
        reason = f"{config.method.name} needs views of one size"
        raise ConfigError(f"train.view_scale: {reason} ({error}); leave it out") from error
    finally:
        shapes_log.disabled = was_disabled
    return recipe
