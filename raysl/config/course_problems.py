"""What is wrong with the settings of a course: those that do not go together, and those that it has no use for."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from raysl.config.optim_schema import OptimConfig

_IN_PHASES = ("schedule", "warmup", "warmup_start", "final_lr", "cosine_from")
"""What phases stand in place of; what else belongs to a schedule comes with it."""
_OWN = {
    "decay_at": ("steps", "has no such points"),
    "num_decays": ("steps", "has no steps"),
    "values": ("steps", "has no steps"),
    "restart_every": ("restarts", "has no restarts"),
    "restart_growth": ("restarts", "has no restarts"),
    "restart_wave": ("restarts", "has no restarts"),
    "restart_peak": ("restarts", "has no restarts"),
    "restart_factor": ("restarts", "has no restarts"),
    "cosine_from": ("cosine", "is no cosine"),
    "power": ("polynomial", "is no polynomial"),
}
"""Settings that belong to one schedule alone, and what the others lack."""


def course_problems(optim: OptimConfig) -> Iterator[str]:
    """A line for each setting of the course that does not go with another."""
    defaults = {field.name: field.default for field in dataclasses.fields(optim)}
    if optim.phases:
        yield from _beside_phases(optim, defaults)
    for name, (schedule, lack) in _OWN.items():
        is_told = optim.phases and name in _IN_PHASES
        if getattr(optim, name) != defaults[name] and optim.schedule != schedule and not is_told:
            yield (
                f"optim.{name}: schedule={optim.schedule} {lack}; set optim.schedule={schedule}, "
                f"or {'leave it out' if defaults[name] in ((), None) else f'optim.{name}={defaults[name]}'}"
            )
    if optim.stretch != 1 and (optim.phases or optim.schedule not in ("cosine", "linear", "polynomial")):
        what = "phases" if optim.phases else f"schedule={optim.schedule}"
        yield (
            f"optim.stretch: {optim.stretch:g}, and {what} has points of its own in the run; set optim.stretch=1, or "
            "optim.schedule=cosine, linear or polynomial"
        )
    if optim.schedule == "steps":
        yield from _of_steps(optim)
    if optim.schedule == "restarts":
        yield from _of_restarts(optim)
    if optim.schedule == "inverse_sqrt" and not optim.warmup.value:
        yield (
            f"optim.schedule: inverse_sqrt falls from the end of the warm-up on, and optim.warmup={optim.warmup}; "
            "set optim.warmup=5%"
        )
    if optim.weight_decay_schedule != "cosine" and optim.weight_decay_end is None:
        yield (
            f"optim.weight_decay_schedule: {optim.weight_decay_schedule} leads to optim.weight_decay_end, which is "
            "not set; give it, or leave both out"
        )


def _beside_phases(optim: OptimConfig, defaults: dict[str, Any]) -> Iterator[str]:
    mixed = [name for name in _IN_PHASES if getattr(optim, name) != defaults[name]]
    if mixed:
        given = ", ".join(f"optim.{name}={getattr(optim, name)}" for name in mixed)
        back = " ".join(f"optim.{name}={defaults[name]}" for name in mixed)
        yield f"optim.phases: they stand in place of {given}; set {back}, which is the default, or no phases"
    if optim.phases[0].shape == "inverse_sqrt":
        yield (
            "optim.phases[0].shape: inverse_sqrt counts from the run's beginning, where it has no value; put a linear "
            "phase before it"
        )


def _of_steps(optim: OptimConfig) -> Iterator[str]:
    if not (optim.decay_at or optim.num_decays or optim.values):
        yield (
            "optim.schedule: steps needs the points of the run to step down at; set optim.decay_at=[60%,80%], or "
            "optim.num_decays=2 for even parts"
        )
    if optim.num_decays and (optim.decay_at or optim.values):
        other = "decay_at" if optim.decay_at else "values"
        yield (
            f"optim.num_decays: {optim.num_decays} even steps, and optim.{other} has steps of its own; leave one of "
            "them out"
        )
    elif optim.values and optim.decay_at and len(optim.values) != len(optim.decay_at) + 1:
        yield (
            f"optim.values: {len(optim.values)} of them, and {len(optim.decay_at)} points in optim.decay_at part the "
            f"run into {len(optim.decay_at) + 1}; give a value for each part"
        )


def _of_restarts(optim: OptimConfig) -> Iterator[str]:
    if optim.restart_every is None:
        yield "optim.schedule: restarts needs the length of the first period; set optim.restart_every=25%"
    if optim.restart_wave == "full" and optim.restart_growth != 1:
        yield (
            f"optim.restart_growth: {optim.restart_growth}, and the periods of full waves are of one length; set "
            "optim.restart_growth=1, or optim.restart_wave=half"
        )
    if optim.restart_peak == "cosine" and optim.restart_factor != 1:
        yield (
            f"optim.restart_factor: {optim.restart_factor:g}, and optim.restart_peak=cosine gives the peaks; set "
            "optim.restart_factor=1, or optim.restart_peak=factor"
        )
