"""Smaller views for a part of the run, `train.view_scale`: cheaper training that ends at full size."""

from collections.abc import Sequence
from dataclasses import replace

from raysl.components import Classes
from raysl.config.linked import view_size_override
from raysl.config.load import apply_overrides
from raysl.data.stream.loader import Stages
from raysl.errors import ConfigError
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.process.screen import only_errors
from raysl.train.epoch_stages import epoch_stages
from raysl.train.rehearsal import rehearse, silent_shapes
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
    return tuple(
        (first, recipe if scale == 1 else _scaled_recipe(setup, classes, scale))
        for first, scale in epoch_stages("train.view_scale", scales, setup.plan)
    )


def describe_stages(stages: Stages) -> str | None:
    """Return the sizes of the views in words; None if they keep their size."""
    if not stages:
        return None
    sides = ["/".join(str(views[0].size) for views in recipe.groups.values()) for _, recipe in stages]
    parts = [f"{side} px from epoch {first} on" for side, (first, _) in zip(sides, stages, strict=True)]
    return f"views of {', '.join(parts)}"


def stage_steps(stages: Sequence[tuple[int, object]], plan: TrainPlan) -> list[int]:
    """Return the number of updates of each stage, which comes with its first epoch."""
    ends = [first * plan.epoch_len for first, _ in stages[1:]] + [plan.total_steps]
    return [end - first * plan.epoch_len for (first, _), end in zip(stages, ends, strict=True)]


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
    try:
        with only_errors(), silent_shapes():
            rehearse(setup, classes, recipe)
    except (ValueError, RuntimeError, TypeError, AssertionError, IndexError) as error:
        reason = f"{config.method.name} needs views of one size"
        raise ConfigError(f"train.view_scale: {reason} ({error}); leave it out") from error
    return recipe
