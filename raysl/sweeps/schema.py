"""The settings of a sweep."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from raysl.components import nearest
from raysl.config.ranges import Seed, Within
from raysl.errors import ConfigError
from raysl.leaderboard.entry import Objective
from raysl.report.contents import online_knn

Mode = Literal["max", "min"]
ONLINE = online_knn(20)
"""What ranks by default, and what a scheduler looks at where nothing else is known while training."""


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A search over the settings of a run."""

    name: str | None = None
    """Name of the sweep; default: that of its file, `sweep-quickstart` for sweep/quickstart; in Python that of the
    configuration."""
    storage: str | None = None
    """Folder or URI in which the sweep's folder `<storage>/<name>/` is; default: that of the configuration."""
    config: str = "quickstart"
    """Configuration that the trials depart from: a packaged name, or a .yaml file beside the sweep's own."""
    configs: list[str] = field(default_factory=list)
    """Configurations that trials depart from instead, each with all that varies: packaged names, .yaml files beside the
    sweep's own, patterns such as digits/*; what follows a ! is taken out again."""
    checkpoints: list[str] = field(default_factory=list)
    """Runs or checkpoints that are measured in place of training, each with all that varies of the benchmarks."""
    settings: list[str] = field(default_factory=list)
    """Settings laid over each configuration, as on the command line: train.epochs=60."""
    benchmarks: list[str] | None = None
    """What is measured of each finished run; default: what its configuration names."""
    seeds: Annotated[int, Within(1, 1000)] = 1
    """Runs of each choice of settings, with the seeds from `seed` on. Search and scheduler look at the first one; the
    others are run of those choices alone that the scheduler let come to their end."""
    trials: Annotated[int, Within(1, 100_000)] = 8
    """Choices to draw of what varies; every grid value and every one of `configs` is tried in each of them. Where
    nothing is drawn, one."""
    metric: str | list[str] = ONLINE
    """Number that ranks the trials: one logged while training, of a benchmark (linear/top1) or a cost (step_s); several
    have a Pareto front, and the first one ranks."""
    mode: Mode | list[Mode] = "max"
    """Whether more or less of it is better."""
    search: str = "random"
    """How values are drawn: `random`, each by itself; a searcher of Ray Tune's by its name (optuna, hyperopt, ax, bohb,
    nevergrad, ...), or any by its import path (ray.tune.search.optuna.OptunaSearch)."""
    search_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the searcher, by Ray Tune's names."""
    scheduler: str = "asha"
    """What ends trials early: `none`, a scheduler of Ray Tune's by its name, or any by its import path
    (ray.tune.schedulers.pb2.PB2). asha (Li et al. 2020, arXiv 1810.05934) stops those behind the others at the same
    epoch; hyperband (arXiv 1603.06560) does so with several first epochs, bohb with its searcher (arXiv 1807.01774);
    median (Golovin et al. 2017) stops those below the median of the others' averages; pbt (Jaderberg et al. 2017, arXiv
    1711.09846) and pb2 (arXiv 2002.02518) have the worst go on from the best ones' weights with changed settings."""
    scheduler_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the scheduler, by Ray Tune's names (grace_period, reduction_factor, perturbation_interval), in
    epochs where they are times."""
    early_metric: str | None = None
    """Number that the scheduler looks at, logged while training; default: `metric`; or, where that is
    measured at the end alone, knn_k20_top1, or knn_k200_top1 for knn/k200/top1."""
    early_mode: Mode | None = None
    """Whether more or less of `early_metric` is better; default: as of `metric`, or max."""
    concurrent: Annotated[int, Within(1, 10_000)] | None = None
    """Trials at a time; default: as many as the cluster has room for."""
    retries: Annotated[int, Within(0, 100)] = 1
    """Times that a trial that failed is tried again before the others go on without it; one whose settings were
    refused is not."""
    seed: Seed | None = None
    """Seed of what is drawn; default: that of the configuration."""
    space: dict[str, Any] = field(default_factory=dict)
    """Dotted setting -> {choice: [..]}, {grid: [..]}, {uniform: [low, high]}, {loguniform: ..}, {randint: ..},
    {lograndint: ..}, the last four also with a q and a step, {quniform: [low, high, step]}; beside it
    when: {method.name: moco} for one that is there for some choices alone."""

    @property
    def first_config(self) -> str:
        """Name or file of the first configuration that trials depart from."""
        return self.configs[0] if self.configs else self.config

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What ranks, the first one first."""
        metrics = [self.metric] if isinstance(self.metric, str) else self.metric
        modes: list[Mode] = list(self.mode) if isinstance(self.mode, list) else [self.mode] * len(metrics)
        if not metrics or len(modes) != len(metrics) or len(set(metrics)) < len(metrics):
            raise ConfigError(
                f"metric: {metrics} and mode: {modes} do not go together; give each metric once, and one mode for "
                "all or one for each"
            )
        return tuple(Objective(metric, mode) for metric, mode in zip(metrics, modes, strict=True))

    @property
    def early(self) -> Objective:
        """What the scheduler looks at."""
        first = self.objectives[0]
        if self.early_metric is not None:
            default = first.mode if self.early_metric == first.metric else "max"
            return Objective(self.early_metric, self.early_mode or default)
        if is_measured(first.metric):
            match = re.fullmatch(r"knn/k(\d+)/top1", first.metric)
            return Objective(online_knn(int(match[1])) if match else ONLINE, self.early_mode or "max")
        return Objective(first.metric, self.early_mode or first.mode)


COSTS = ("seconds", "step_s", "memory_gb", "gpu_hours")
"""Metrics that are neither logged nor measured: what a run cost."""


def is_measured(metric: str) -> bool:
    """Whether a number is known at the end of a run alone."""
    return "/" in metric or metric in COSTS


SCHEDULERS = {
    "none": "ray.tune.schedulers.FIFOScheduler",
    "asha": "ray.tune.schedulers.ASHAScheduler",
    "hyperband": "ray.tune.schedulers.HyperBandScheduler",
    "bohb": "ray.tune.schedulers.HyperBandForBOHB",
    "median": "ray.tune.schedulers.MedianStoppingRule",
    "pbt": "ray.tune.schedulers.PopulationBasedTraining",
    "pb2": "ray.tune.schedulers.pb2.PB2",
}
SEARCHERS = {
    "random": "ray.tune.search.BasicVariantGenerator",
    "ax": "ray.tune.search.ax.AxSearch",
    "bayesopt": "ray.tune.search.bayesopt.BayesOptSearch",
    "bohb": "ray.tune.search.bohb.TuneBOHB",
    "hebo": "ray.tune.search.hebo.HEBOSearch",
    "hyperopt": "ray.tune.search.hyperopt.HyperOptSearch",
    "nevergrad": "ray.tune.search.nevergrad.NevergradSearch",
    "optuna": "ray.tune.search.optuna.OptunaSearch",
    "zoopt": "ray.tune.search.zoopt.ZOOptSearch",
}
POPULATIONS = ("pbt", "pb2", "PopulationBasedTraining", "PB2")


def is_population(sweep: SweepConfig) -> bool:
    """Whether the scheduler has trials go on from each other's weights."""
    return sweep.scheduler.rpartition(".")[2] in POPULATIONS


def check_name(key: str, name: str, known: Mapping[str, str]) -> None:
    """Refuse the name of a scheduler or searcher that there is not; import paths are looked at later."""
    if name not in known and "." not in name:
        near = nearest(name, list(known))
        hint = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"{key}: {name!r} is none; {hint}give one of {', '.join(known)}, or an import path")
