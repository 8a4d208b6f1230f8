"""Numbers of a run for Ray's dashboard and Prometheus, which has them as `ray_raysl_loss` and so on."""

from ray.util.metrics import Gauge
from typing_extensions import override

from raysl import distributed as dist
from raysl.cluster.names import ray_name
from raysl.config.schema import RunConfig
from raysl.schedule import Step
from raysl.storage.addresses import cut
from raysl.train.callbacks.callback import Callback, Run

Tags = dict[str, str]
"""`run`, and `trial`, which is empty but in a sweep."""

_GAUGES = {
    "images_per_s": ("raysl_images_per_second", "Images that all workers train on in a second."),
    "loss": ("raysl_loss", "Loss of the last logged step."),
    "data_wait": ("raysl_data_wait", "Share of the step time that workers wait for data, 0 to 1."),
    "step_s": ("raysl_step_seconds", "Seconds of a step."),
}
"""Name and description of each gauge, by the name of the number in a logged line."""


def tags_of(config: RunConfig, is_trial: bool) -> Tags:
    """Return the tags of a run's metrics; a trial has its sweep's name, that of its storage, as `run`.

    Names are as Ray takes them (`ray_name`).
    """
    if not is_trial:
        return {"run": ray_name(config.name), "trial": ""}
    return {"run": ray_name(cut(config.storage.rstrip("/"))[1]), "trial": ray_name(config.name)}


class RayMetrics(Callback):
    """Hands the logged lines of the main rank to Ray's metrics.

    Args:
        tags: result of `tags_of`.
    """

    def __init__(self, tags: Tags) -> None:
        super().__init__()
        self.tags = tags
        self.gauges: dict[str, Gauge] = {}
        self.step: Gauge | None = None

    @override
    def on_train_start(self, run: Run) -> None:
        if dist.is_main():
            self.step = _gauge("raysl_step", "Updates that the run has done.", self.tags)
            self.step.set(run.state.step)

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        if self.step is None:
            return
        self.step.set(step.index)
        for name in _GAUGES.keys() & line.keys():
            if name not in self.gauges:
                self.gauges[name] = _gauge(*_GAUGES[name], self.tags)
            self.gauges[name].set(line[name])


def _gauge(name: str, description: str, tags: Tags) -> Gauge:
    return Gauge(name, description, tag_keys=tuple(tags)).set_default_tags(tags)
