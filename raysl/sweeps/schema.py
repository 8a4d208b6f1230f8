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
"""Default metric, and the one that a scheduler uses if `metric` is not known while training."""


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A search over the settings of a run."""

    name: str | None = None
    """Name of the sweep; default: that of its file, `sweep-quickstart` for sweep/quickstart; in Python that of the
    configuration."""
    storage: str | None = None
    """Folder or URI that contains the sweep's folder `<storage>/<name>/`; default: that of the configuration."""
    config: str = "quickstart"
    """Configuration that the trials depart from: a packaged name, or a .yaml file beside the sweep's own."""
    configs: list[str] = field(default_factory=list)
    """Several configurations in place of `config`; each is tried with every choice of the space. Packaged names, .yaml
    files beside the sweep's own, and patterns such as digits/* and mine/*.yaml; a name after a ! is left out."""
    checkpoints: list[str] = field(default_factory=list)
    """Runs or checkpoints that are measured and not trained; only settings of benchmarks may vary."""
    settings: list[str] = field(default_factory=list)
    """Settings that change each configuration, as on the command line: train.epochs=60."""
    benchmarks: list[str] | None = None
    """Benchmarks that measure each finished run; default: those of its configuration."""
    seeds: Annotated[int, Within(1, 1000)] = 1
    """Number of runs of each choice of settings, with the seeds from `seed` on. Search and scheduler use the first run;
    the others are run only for choices whose first run finished."""
    trials: Annotated[int, Within(1, 100_000)] = 8
    """Number of choices to draw from the space. Each is tried with every grid value and every one of `configs`. If
    nothing is drawn at random, there is one choice."""
    metric: str | list[str] = ONLINE
    """Number that ranks the trials: one logged while training, one of a benchmark (linear/top1) or a cost (step_s).
    Several have a Pareto front, and the first one ranks."""
    mode: Mode | list[Mode] = "max"
    """Whether more or less of the metric is better; a list for several metrics."""
    search: str = "random"
    """Search that draws the values: `random`, where draws are independent, a searcher of Ray Tune by its name (optuna,
    hyperopt, ax, bohb, nevergrad, ...), or any by its import path (ray.tune.search.optuna.OptunaSearch)."""
    search_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the searcher, by Ray Tune's names."""
    scheduler: str = "asha"
    """Scheduler that ends trials early: `none`, one of Ray Tune by its name, or any by its import path
    (ray.tune.schedulers.pb2.PB2). asha (Li et al. 2020, arXiv 1810.05934) stops trials that are worse than others at
    the same epoch; hyperband (arXiv 1603.06560) does so with several first epochs, bohb with its searcher (arXiv
    1807.01774); median (Golovin et al. 2017) stops trials below the median of the others' averages; in pbt (Jaderberg
    et al. 2017, arXiv 1711.09846) and pb2 (arXiv 2002.02518) the worst trials go on from the weights of the best ones,
    with changed settings."""
    scheduler_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the scheduler, by Ray Tune's names (grace_period, reduction_factor, perturbation_interval); times
    are in epochs."""
    early_metric: str | None = None
    """Number, logged while training, by which the scheduler compares trials; default: `metric`, or, if that is known
    only at the end, knn_k20_top1 (knn_k200_top1 for knn/k200/top1)."""
    early_mode: Mode | None = None
    """Whether more or less of `early_metric` is better; default: as for `metric`, or max."""
    concurrent: Annotated[int, Within(1, 10_000)] | None = None
    """Number of trials at a time; default: as many as the cluster has room for."""
    retries: Annotated[int, Within(0, 100)] = 1
    """Number of times that a failed trial is tried again. A trial whose settings were refused is not tried again."""
    seed: Seed | None = None
    """Seed of all draws; default: that of the configuration."""
    space: dict[str, Any] = field(default_factory=dict)
    """Settings that vary: a dotted setting with {choice: [..]}, {grid: [..]}, {uniform: [low, high]}, {loguniform: ..},
    {randint: ..} or {lograndint: ..}; the last four also with a q and a step, {quniform: [low, high, step]}. Beside
    it, when: {method.name: moco} for a setting that only some choices have."""

    @property
    def first_config(self) -> str:
        """Name or file of the first configuration that trials depart from."""
        return self.configs[0] if self.configs else self.config

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Metrics that rank the trials, with their modes; the first one counts most."""
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
        """Metric by which the scheduler compares trials, with its mode."""
        first = self.objectives[0]
        if self.early_metric is not None:
            default = first.mode if self.early_metric == first.metric else "max"
            return Objective(self.early_metric, self.early_mode or default)
        if is_measured(first.metric):
            match = re.fullmatch(r"knn/k(\d+)/top1", first.metric)
            return Objective(online_knn(int(match[1])) if match else ONLINE, self.early_mode or "max")
        return Objective(first.metric, self.early_mode or first.mode)


COSTS = ("seconds", "step_s", "memory_gb", "gpu_hours")
"""Metrics that are costs of a run, and neither logged nor measured."""


def is_measured(metric: str) -> bool:
    """Whether a number is known only at the end of a run."""
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
    """Refuse an unknown name of a scheduler or searcher; import paths are checked later."""
    if name not in known and "." not in name:
        near = nearest(name, list(known))
        hint = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"{key}: {name!r} is none; {hint}give one of {', '.join(known)}, or an import path")
