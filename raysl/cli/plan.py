"""`raysl plan`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from raysl.cli.arguments import Arguments, LowResource, Verbose, load_run, set_up, show_json
from raysl.errors import log
from raysl.process.screen import counted

if TYPE_CHECKING:
    from raysl.config.schema import RunConfig
    from raysl.plan.cost import Cost
    from raysl.plan.setup import Setup
    from raysl.train.prepare import Prepared

Gpu = Annotated[str | None, typer.Option(help="Also print memory, speed and hours on such GPUs: h100, a100 or l4.")]
Images = Annotated[
    int | None, typer.Option(min=1, help="With --gpu: so many images, in place of those of the settings.")
]
Classes = Annotated[int, typer.Option(min=0, help="With --images: number of their classes.")]
AsJson = Annotated[bool, typer.Option("--json", help="With --gpu: print its numbers as JSON alone.")]


def run_plan(
    arguments: Arguments = None,
    gpu: Gpu = None,
    images: Images = None,
    classes: Classes = 1000,
    as_json: AsJson = False,
    low_resource: LowResource = False,
    verbose: Verbose = False,
) -> None:
    """Print what a new run would do: batches, steps, reads, how well it shuffles, memory. Nothing is started.

    With --gpu also what it would take on GPUs of a kind, by running a step on tensors of shapes alone. Weights named by
    method.weights are held against the backbone, and converted first where they are of others; those of
    backbone.pretrained are not downloaded.

    Exit code 0: the run can start, 2: the input is wrong.
    """
    set_up(verbose)
    config = load_run(arguments, low_resource, command="plan")
    from raysl.errors import ConfigError
    from raysl.storage.addresses import check_scheme

    check_scheme(config.storage)

    if gpu is None and (as_json or images is not None):
        raise ConfigError("--json and --images go with --gpu; add --gpu h100, a100 or l4")
    run = None
    if images is None:
        from raysl.train.prepare import prepare

        run = prepare(config)
        setup = run.setup
        reads = [] if as_json else _reads(run)
    else:
        setup, reads = _setup_of(config, images, classes), []
    if config.method.weights is not None:
        from raysl.runs.begin import check_weights

        check_weights(config)
    cost = None if gpu is None else _cost(setup, gpu, run)
    if cost is not None and as_json:
        show_json(cost.as_dict())
        return
    for line in [*_course(setup), *reads, *([] if cost is None else cost.lines())]:
        typer.echo(line)


def _course(setup: "Setup") -> list[str]:
    plan = setup.plan
    rows = str(plan.rows[0]) if len(set(plan.rows)) == 1 else f"{min(plan.rows)} to {max(plan.rows)}"
    workers, lanes = counted(plan.world, "worker"), counted(plan.lanes, "lane")
    return [
        f"images      {setup.data.num_samples:,} to train on",
        f"batch       {plan.batch_size:,} images: {rows} on each of {workers}, {lanes}",
        f"training    {plan.total_steps:,} steps, {plan.epoch_len:,} in an epoch",
    ]


def _reads(run: "Prepared") -> list[str]:
    from raysl.plan.reads import Reads, describe_mix
    from raysl.train.view_stages import describe_stages

    lines = Reads.of(run.loader.order).lines(run.loader.row_bytes)
    lines += filter(None, (describe_mix(run.loader.order), describe_stages(run.loader.stages), run.drops.describe()))
    return [f"{'' if number else 'reads':<12}{line}" for number, line in enumerate(lines)]


def _setup_of(config: "RunConfig", num_images: int, num_classes: int) -> "Setup":
    """Return the setup of a run over images that are not there."""
    from raysl.plan.adapt import adapt, describe_adapted
    from raysl.plan.plan import TrainPlan
    from raysl.plan.setup import Setup

    fitting = adapt(config, num_images)
    if line := describe_adapted(config, fitting, num_images):
        log.info(line)
    plan = TrainPlan.from_config(fitting, num_images, config.train.most_workers)
    return Setup.of(fitting, num_images, num_classes, plan=plan)


def _cost(setup: "Setup", gpu: str, run: "Prepared | None") -> "Cost":
    """Return the cost of a setup on GPUs of a kind; `run` has its views, or is None if they are not checked yet."""
    from raysl.components import Classes as Components
    from raysl.nn.patch_drop import dropping_patches
    from raysl.plan.cards import card_of
    from raysl.plan.cost import Cost
    from raysl.plan.plan import TrainPlan
    from raysl.train.patch_drops import check_patch_drop, drop_stages
    from raysl.train.prepare import check_views
    from raysl.train.rehearsal import rehearse
    from raysl.train.view_stages import stage_steps, view_stages
    from raysl.transforms import ViewRecipe

    card, config, old = card_of(gpu), setup.config, setup.plan
    # planned again for GPUs, where train.precision=auto means bf16
    plan = TrainPlan.from_config(config, setup.data.num_samples, old.world, "cuda", old.lanes)
    classes = Components.of(config)
    setup = replace(setup, plan=plan)
    if run is None:
        recipe = check_views(setup, classes)
        stages, drops = view_stages(setup, classes, recipe), check_patch_drop(setup, classes, recipe)
    else:
        recipe, stages, drops = run.loader.recipe, run.loader.stages, run.drops

    def cost_of(views: ViewRecipe, share: float) -> Cost:
        with dropping_patches(share):
            return Cost.of(rehearse(setup, classes, views), card, plan, config.train)

    cost = cost_of(recipe, 0.0)
    if not stages and not drops.shares:
        return cost
    parts = drop_stages(stages, drops.shares, recipe)
    bounds = [cost.bound_s if part == (recipe, 0.0) else cost_of(*part).bound_s for _, part in parts]
    hours = sum(num * bound for num, bound in zip(stage_steps(parts, plan), bounds, strict=True)) / 3600
    saved = " and ".join(
        name for name, is_set in (("smaller views", stages), ("left-out patches", drops.shares)) if is_set
    )
    assumption = f"the duration of the run counts its {saved}, the other numbers are those of full size"
    return replace(cost, hours=hours, gpu_hours=hours * plan.world, assumptions=[*cost.assumptions, assumption])
