"""Settings and images of a run, checked as far as possible before a cluster is asked for anything."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from raysl.checkpoint.checkpoint_folder import NewestCheckpoint
from raysl.components import Classes
from raysl.config.linked import MEAN, STD, find_size_setting
from raysl.config.schema import RunConfig, TrainConfig
from raysl.data.decode.images import check_readable
from raysl.data.ingest.parts import warn_of_notes
from raysl.data.order import Order, default_lanes
from raysl.data.source import Split, make_source
from raysl.data.stream.loader import Loader, ReadBlocks
from raysl.data.stream.targets import TargetLoader
from raysl.errors import ConfigError, Problems, log
from raysl.methods.method import Method
from raysl.methods.shared.device import check_device_settings
from raysl.nn.adapters import add_adapters
from raysl.nn.backbones.freezing import check_freeze
from raysl.nn.backbones.shapes import pass_shapes
from raysl.optim.groups import check_layers
from raysl.plan.adapt import BATCH, adapt, describe_adapted, rows_in_memory
from raysl.plan.plan import TrainPlan, is_exact
from raysl.plan.reads import Reads, describe_mix
from raysl.plan.reference import describe_scaling, for_workers
from raysl.plan.setup import Setup
from raysl.process.environment import GIB, free_memory
from raysl.process.screen import only_errors
from raysl.schedule import Duration
from raysl.train.callbacks.callback import Callback, configured
from raysl.train.callbacks.online_probe import check_probe
from raysl.train.expected import check_expected_names, course_warning, end_warning
from raysl.train.patch_drops import PatchDrops, check_patch_drop
from raysl.train.rehearsal import rehearse
from raysl.train.view_stages import describe_stages, view_stages
from raysl.train.warm_heads import check_warm_heads, warm_heads_warning
from raysl.transforms.view_recipe import ViewRecipe, evaluation_recipe

OnlineKNN = Callable[[Loader, Split, int, Duration, ReadBlocks, bool], Callback]
"""Makes a callback from a loader of training images, held-out images, number of classes, how often to measure, what
reads the images, and whether ranks of the features are measured too."""


@dataclass(frozen=True)
class Measurements:
    """What is measured of a run while it trains and afterwards.

    Args:
        left_out: a line for each measurement that its images do not allow.
        online: names of the numbers of the online kNN; none where it is not measured.
        online_knn: makes the callback that measures them, or None.
    """

    names: Collection[str]
    left_out: Sequence[str]
    online: Collection[str] = ()
    online_knn: OnlineKNN | None = None


Measure = Callable[[RunConfig, Split, Split | None], Measurements]
"""Checks the benchmarks of a run against its training and held-out images."""


@dataclass(frozen=True)
class Prepared:
    """A run whose settings fit its images.

    Args:
        drops: patches that training leaves out.
        test: held-out images for measurements during training, or None.
        online_knn: makes the callback for the kNN accuracy on them; None where it is not measured.
        has_held_out: whether the method's own task is measured on them.
    """

    setup: Setup
    classes: Classes
    loader: Loader
    drops: PatchDrops
    test: Split | None
    online_knn: OnlineKNN | None = None
    has_held_out: bool = False
    callbacks: tuple[Callback, ...] = ()

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        return self.setup.config

    @property
    def has_reconstructions(self) -> bool:
        """Whether pictures show the pixels that the method predicts."""
        return _reconstructs(self.config.train, self.classes)


def prepare(config: RunConfig, measure: Measure | None = None) -> Prepared:
    """Check the settings and the images of a run, without a cluster.

    Args:
        measure: checks what will be measured of the run. Default: nothing is measured, and `train.expect` is not
            checked.
    """
    written, classes, problems = config, Classes.of(config), Problems()
    with problems.catching():
        callbacks = configured(config)
    with problems.catching():
        source = make_source(config.data)
        train, test = source.required("train"), source.optional("test")
        warn_of_notes([train] if test is None else [train, test])
        check_readable(train, "training")
        config = adapted(config, classes, train.num_samples, len(train.classes))
        if line := describe_adapted(written, config, train.num_samples):
            log.info(line)
        plan = _plan(config, train)
    problems.check()
    num_classes = len(train.classes)
    setup = Setup.of(
        config,
        train.num_samples,
        num_classes,
        plan=plan,
        backbone_class=classes.backbone,
        fingerprint=train.fingerprint,
    )
    config, has_patches = setup.config, setup.backbone.patch_size is not None
    with problems.catching():
        check_layers(config.optim, setup.backbone.num_layers, classes.backbone, has_patches)
    with problems.catching():
        check_device_settings(config.train, classes.method, classes.backbone.without_weights(config.backbone).units())
    with problems.catching():
        check_warm_heads(config)
    with problems.catching():
        _check_adapters(config, classes)
    with problems.catching():
        recipe = check_views(setup, classes)
        if config.train.online_probe is not None:
            check_probe(train, recipe)
        drops = check_patch_drop(setup, classes, recipe)
    with problems.catching():
        evaluated, online_knn = _evaluated(config, classes, test), None
        if measure is not None:
            if test is not None:
                check_readable(test, "held-out")
            measured = measure(config, train, test)
            check_expected_names(config, classes.method, measured.names, measured.online, evaluated)
            for line in measured.left_out:
                log.warning(line)
            online_knn = measured.online_knn
    problems.check()
    _check_statistics(setup, classes, recipe)
    if derived := describe_scaling(setup.as_written):
        log.info(derived)
    if config.train.online_probe is not None and test is None:
        log.warning("train.online_probe measures no held-out images: the data has none; give data.test=")
    loader = make_loader(setup, classes, train, recipe, config.data.augment_on == "task")
    for line in (describe_mix(loader.order), describe_stages(loader.stages), drops.describe()):
        if line:
            log.info(line)
    for warning in (
        _mean_warning(config),
        course_warning(plan),
        end_warning(config.train, plan),
        warm_heads_warning(plan, config.train.warm_heads),
        *_size_warnings(config, classes, recipe),
        Reads.of(loader.order).warning(loader.row_bytes, config.data),
    ):
        if warning:
            log.warning(warning)
    is_measured = online_knn is not None or evaluated or config.train.online_probe is not None
    return Prepared(
        setup=setup,
        classes=classes,
        loader=loader,
        drops=drops,
        test=test if is_measured or _reconstructs(config.train, classes) else None,
        online_knn=online_knn,
        has_held_out=bool(evaluated),
        callbacks=callbacks,
    )


def continued(run: Prepared, newest: NewestCheckpoint) -> Prepared:
    """Return the run with the order of samples that its checkpoint was trained in.

    Raises:
        ConfigError: if the order has another version, or fewer lanes than the run has workers now.
    """
    if newest.step == 0:
        return run
    order = newest.meta["order"]
    if order["version"] != Order.version:
        raise ConfigError(
            f"the run {run.config.name!r} has version {order['version']} of the order of samples, and this raysl has "
            f"version {Order.version}; go on with the version of raysl that began it"
        )
    workers, lanes = run.config.train.most_workers, run.config.data.lanes or order["lanes"]
    if workers > lanes:
        raise ConfigError(
            f"{workers} workers are more than the {lanes} lanes with which the run {run.config.name!r} began; set "
            f"train.workers={lanes} or less, or give the run another name="
        )
    plan = _plan(run.config, run.loader.split, lanes)
    setup, loader = replace(run.setup, plan=plan), replace(run.loader, order=plan.order(run.loader.split))
    return replace(run, setup=setup, loader=loader)


def _plan(config: RunConfig, split: Split, lanes: int | None = None) -> TrainPlan:
    """Return the plan of a run on its largest number of workers, after checking every other number that it allows."""
    config = for_workers(config)
    train, data = config.train, config.data
    units = None if is_exact(split, data.exact_below) else int(np.count_nonzero(split.read_units))
    lanes = data.lanes or lanes or default_lanes(train.batch_size, units, train.most_workers * train.accumulate)
    make = partial(TrainPlan.from_config, config, split.num_samples, lanes=lanes)
    plan = make(train.most_workers)
    for world in range(train.least_workers, train.most_workers):
        make(world)
    if not train.is_uneven_allowed:
        plan.check_even()
    return plan


def adapted(config: RunConfig, classes: Classes, num_samples: int, num_classes: int) -> RunConfig:
    """Return settings that fit the images and, where training is on this machine, its memory; see `plan.adapt`."""
    fitting = adapt(config, num_samples)
    num_bytes = _memory_of_worker(config.train)
    if BATCH not in config.adapt or num_bytes is None:
        return fitting
    try:
        with only_errors():
            setup = Setup.of(fitting, num_samples, num_classes, backbone_class=classes.backbone)
            recipe = check_views(setup, classes)
    except ConfigError:  # the checks of the run raise it again, with all others
        return fitting
    if classes.method.targets(setup) is not None:
        return fitting
    return adapt(config, num_samples, rows_in_memory(fitting, classes.backbone, recipe, num_bytes))


def _memory_of_worker(train: TrainConfig) -> float | None:
    """Return the bytes that each worker on this machine has; None for those of a cluster."""
    if "RAY_ADDRESS" in os.environ:
        return None
    if train.device != "cpu" and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory)
    memory = free_memory()
    return None if memory is None else memory["total"] * GIB / train.most_workers


def check_views(setup: Setup, classes: Classes) -> ViewRecipe:
    """Return the views of a run after its method and its backbone have checked its settings."""
    check_freeze(setup.config.backbone.freeze, setup.backbone, setup.config.backbone.name)
    classes.method.check(setup)
    recipe = make_views(setup, classes)
    _check_channels(setup, classes, recipe)
    sides = {view.size for views in recipe.groups.values() for view in views}
    for side in (setup.config.data.image_size, *sorted(sides, reverse=True)):
        try:
            classes.backbone.check_side(setup.config.backbone, side)
        except ConfigError as error:
            raise ConfigError(f"{find_size_setting(setup.config, side)}={side}: {error}") from error
    return recipe


def _check_statistics(setup: Setup, classes: Classes, recipe: ViewRecipe) -> None:
    """Refuse one image for layers that normalise over several, by a step on shapes alone where there is only one."""
    plan, train = setup.plan, setup.config.train
    rows = plan.batch_size if train.sync_bn and train.sync_bn_ranks is None else min(plan.rows)
    if rows > 1 or classes.method.targets(setup) is not None:
        return
    try:
        with only_errors():
            rehearse(setup, classes, recipe)
    except ValueError as error:
        if not str(error).startswith("Expected more than 1 value per channel"):  # torch's message
            raise
        where = "" if plan.world == 1 else f" for one of {plan.world} workers"
        sync = "" if train.sync_bn else ", or train.sync_bn=true for statistics of all workers"
        raise ConfigError(
            f"train.batch_size={plan.batch_size} is 1 image{where}, and {setup.config.method.name} normalises over "
            f"several: set train.batch_size={2 * plan.world} or more{sync}"
        ) from error


def _check_adapters(config: RunConfig, classes: Classes) -> None:
    """Refuse adapters of a random network, of frozen stages, and of a network without such layers."""
    backbone = config.backbone
    if backbone.adapters is None:
        return
    if config.method.weights is None and not backbone.is_pretrained:
        raise ConfigError(
            "backbone.adapters: they change a network that has learnt before, and this one begins at random; set "
            "method.weights=, or backbone.pretrained=true of a backbone that has published weights"
        )
    if backbone.freeze:
        raise ConfigError(
            f"backbone.adapters: all weights beside them stay, and backbone.freeze={list(backbone.freeze)}; leave "
            "backbone.freeze out"
        )
    add_adapters(classes.backbone.without_weights(backbone), backbone.adapters)


def _mean_warning(config: RunConfig) -> str | None:
    """Return a warning of a normalisation that stands for one that nobody has computed."""
    data = config.data
    if not isinstance(data.channels, int) or {*data.mean, *data.std} != {MEAN, STD}:
        return None
    return (
        f"data.mean is {MEAN:g} and data.std {STD:g} for each of the {data.channels} channels; `raysl ingest` with the "
        "same settings of the data and --check prints those of these images"
    )


def _check_channels(setup: Setup, classes: Classes, recipe: ViewRecipe) -> None:
    """Refuse transforms and backbones that do not take images of `data.channels`, where that is a number."""
    config = setup.config
    if not isinstance(num := config.data.channels, int):
        return
    for view in (view for group in recipe.groups.values() for view in group):
        for transform in (*view.transforms, *view.tile_transforms):
            if problem := transform.channels_problem(num):
                raise ConfigError(f"data.channels={num} and {type(transform).__name__}: {problem}")
    network = classes.backbone.without_weights(config.backbone).to("meta").eval()
    try:
        pass_shapes(network, num, network.native_size)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"backbone.name: {config.backbone.name} does not take images of {num} channels ({error}); its first layer "
            "has to take config.in_channels of them"
        ) from error


def make_views(setup: Setup, classes: Classes) -> ViewRecipe:
    """Return the views that a method asks for."""
    try:
        recipe: ViewRecipe = classes.method.all_views(setup)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"method.views: {error}") from error
    if setup.config.method.transforms and classes.method.targets(setup) is not None:
        name = setup.config.method.name
        raise ConfigError(
            f"method.transforms: {name} makes images with targets and no views; leave method.transforms out"
        )
    return recipe


def make_loader(setup: Setup, classes: Classes, split: Split, recipe: ViewRecipe, augment_in_task: bool) -> Loader:
    """Make the loader of a run on a split.

    Raises:
        ConfigError: if `train.view_scale` does not fit the run, its method or its backbone.
    """
    data, targets = setup.config.data, classes.method.targets(setup)
    make = Loader if targets is None else partial(TargetLoader, targets=targets)
    return make(
        split=split,
        recipe=recipe,
        order=setup.plan.order(split),
        mean=data.mean,
        std=data.std,
        augment_in_task=augment_in_task,
        plain_recipe=evaluation_recipe(data.image_size, data.eval_resize, data.eval_interpolation),
        scaled_decode=data.scaled_decode,
        channels=data.channels,
        stages=view_stages(setup, classes, recipe),
    )


def _reconstructs(train: TrainConfig, classes: Classes) -> bool:
    """Return whether pictures show the pixels that the method predicts."""
    # with fsdp the main worker, which alone predicts, has only a share of the weights
    is_wanted = train.reconstruct_every is not None and train.parallel != "fsdp"
    return is_wanted and classes.method.reconstruct is not Method.reconstruct


def _size_warnings(config: RunConfig, classes: Classes, recipe: ViewRecipe) -> Iterator[str | None]:
    """Warn if images are measured at another size than they are trained at, or if that does not suit the backbone."""
    # Tiles are parts of an image: their size says nothing about the size to measure at.
    if next(iter(recipe.groups.values()))[0].tiles is not None:
        return
    if recipe.size != config.data.image_size:
        yield (
            f"images are trained at {recipe.size} px and measured at data.image_size={config.data.image_size}; give "
            "one size alone for both"
        )
    # a network that weights are made for cannot be changed
    if config.method.weights is None:
        yield classes.backbone.advice(config.backbone, recipe.size)


def _evaluated(config: RunConfig, classes: Classes, test: Split | None) -> tuple[str, ...]:
    """Return the names of the method's own measurements on held-out images, if they are asked for and possible."""
    if config.train.eval_every is None:
        return ()
    names: tuple[str, ...] = classes.method.evaluated_by(config.method)
    if not names:
        log.warning("train.eval_every is left out: %s has no task for held-out images", config.method.name)
    elif test is None:
        log.warning("train.eval_every is left out: the data has no held-out images; give data.test=")
        return ()
    return names
