"""Checks that several methods make before a process starts."""

from raysl.components import resolve
from raysl.errors import ConfigError, log
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.maps import last_map
from raysl.nn.classifiers import vector_widths
from raysl.plan.setup import Setup
from raysl.transforms.recipes import MultiCrop

FEW_IMAGES = 16
"""Batches below this size are worth a warning where a method compares the images of a batch."""


def check_two_views(setup: Setup, why: str) -> None:
    """Refuse numbers of views other than two.

    Args:
        why: role of the two views in the method, for the message.
    """
    num = setup.method.views.num
    if num != 2:
        raise ConfigError(f"method.views.num is {num}; {why}: set it to 2")


def check_some_views(setup: Setup, why: str) -> None:
    """Refuse a single view, large or small; the arguments are those of `check_two_views`."""
    views = setup.method.views
    if isinstance(views, MultiCrop) and views.num + views.num_local < 2:
        raise ConfigError(
            f"method.views.num is 1 and method.views.num_local is 0; {why}: give at least 2 views, large or small"
        )
    if views.num < 2 and not isinstance(views, MultiCrop):
        raise ConfigError(f"method.views.num is 1; {why}: give at least 2")


def check_batch(setup: Setup, why: str) -> None:
    """Refuse batches of a single image, and warn of small ones; the arguments are those of `check_two_views`."""
    batch_size = setup.plan.batch_size
    if batch_size < 2:
        raise ConfigError(f"train.batch_size is {batch_size}; {why}: at least 2, better 256")
    if batch_size < FEW_IMAGES:
        log.warning("train.batch_size=%d is small for %s: %s; better 256", batch_size, setup.config.method.name, why)


def check_queue(setup: Setup, what: str) -> None:
    """Refuse a queue smaller than a batch.

    Args:
        what: effect on its rows, such as "keys would leave before a query met them".
    """
    queue_size, batch_size = setup.method.queue_size, setup.plan.batch_size
    if queue_size < batch_size:
        raise ConfigError(
            f"method.queue_size is {queue_size} and train.batch_size {batch_size}: {what}; give {batch_size} or more, "
            "better 16 batches"
        )


def check_map_stage(setup: Setup) -> None:
    """Refuse a `method.stage` that the backbone has not, and a backbone without a map in front of its features."""
    backbone: type[Backbone] = resolve("backbone", setup.config.backbone.name)
    info, stage = backbone.info(setup.config.backbone), setup.method.stage
    if stage is None:
        last_map(info)
    elif stage not in info.stages:
        known = ", ".join(info.stages) or "none"
        raise ConfigError(f"method.stage is {stage!r}; the stages of the backbone are {known}")


def check_heads(setup: Setup) -> None:
    """Refuse heads on unknown stages, and pools that do not fit their stages."""
    config, info = setup.config, setup.backbone
    if not info.feature_stages:
        raise ConfigError(
            f"method.heads: backbone {config.backbone.name!r} does not name the stages of its features; give it "
            "`feature_stages`, or leave the heads out"
        )
    if unknown := [head.stage for head in setup.method.heads if head.stage not in info.stages]:
        raise ConfigError(
            f"method.heads: no stage {unknown[0]!r} in {config.backbone.name}; its stages: {', '.join(info.stages)}"
        )
    network: Backbone = resolve("backbone", config.backbone.name).without_weights(config.backbone)
    try:
        vector_widths([(head.stage, head.pool) for head in setup.method.heads], network, setup.method.views.size)
    except ValueError as error:
        raise ConfigError(f"method.heads: {error}") from error
