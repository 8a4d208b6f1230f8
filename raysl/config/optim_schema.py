"""Settings of every optimizer: schedules of learning rate and weight decay, excluded parameters, and rules for them."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from raysl.config.component import ComponentConfig
from raysl.config.ranges import Adapts, Count, Every, Length, Positive, Share, Within
from raysl.schedule import Duration

Token = Literal["cls_token", "reg_token", "mask_token", "pos_embed", "relative_position_bias_table"]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One of several consecutive parts of the learning rate's course."""

    shape: Literal["constant", "linear", "cosine", "polynomial", "inverse_sqrt"]
    """Its curve. inverse_sqrt is start * sqrt(a / i) at update i of the run, in a phase that begins at update a."""
    length: Every
    """Its length; all phases together are as long as the run."""
    start: Share
    """Learning rate at its beginning, as a share of the peak."""
    end: Share | None = None
    """Learning rate at its end, as a share of the peak. Default: `start`."""
    over: Literal["phase", "run"] = "phase"
    """What its curve spans: the phase, or the whole run, of which the phase is then a part."""
    power: Positive = 1.0
    """Exponent p of a polynomial, end + (start - end) * (1 - x)^p."""

    def __post_init__(self) -> None:
        if self.shape == "constant" and self.end not in (None, self.start):
            raise ValueError("a constant phase stays at its start; leave out end, or set shape=linear")
        if self.shape == "inverse_sqrt" and (self.end is not None or self.over == "run"):
            raise ValueError("the curve of an inverse_sqrt phase needs neither end nor over; leave them out")
        if self.power != 1 and self.shape != "polynomial":
            raise ValueError(f"power={self.power:g} is for a polynomial; set shape=polynomial, or leave it out")


@dataclass(frozen=True, kw_only=True)
class OptimConfig(ComponentConfig):
    """Base of every optimizer's settings, with the schedule of its learning rate."""

    lr: Annotated[float, Within(0, 1e6)] = 0.3
    """Peak learning rate for `lr_batch_size` images."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "linear"
    """How the learning rate grows with train.batch_size / lr_batch_size."""
    lr_batch_size: Count = 256
    """Global batch size to which `lr` belongs."""
    schedule: Literal["cosine", "constant", "linear", "polynomial", "inverse_sqrt", "steps", "restarts"] = "cosine"
    """Course of the learning rate after the warm-up: down to `final_lr` by half a cosine, a straight line or a
    polynomial; constant at the peak; peak * sqrt(warm-up / updates done); steps down at `decay_at`; or half a cosine
    repeated with the period `restart_every`."""
    update_every: Literal["step", "epoch"] = "step"
    """When learning rate and weight decay change: at every update, or only at the beginning of an epoch, to the values
    of its first update. A warm-up shorter than an epoch then has no effect."""
    warmup: Annotated[Length, Adapts("warmup")] = field(default=Duration.parse("10ep"))
    """Linear rise to the peak: epochs (10ep), steps (500st) or a share of the run (5%)."""
    warmup_start: Share = 0.0
    """Learning rate of the first step of the warm-up, as a share of the peak. With 0 the first step has the learning
    rate of one of equal increments."""
    final_lr: Share = 0.0
    """Learning rate at the end of a cosine, a straight line or a polynomial, as a share of the peak."""
    power: Positive = 1.0
    """Exponent p of schedule=polynomial, final_lr + (1 - final_lr) * (1 - x)^p of the peak; 0.9 in segmentation, 1 is a
    straight line."""
    cosine_from: Literal["warmup", "start"] = "warmup"
    """Where the cosine begins: after the warm-up, or with the run, so that it is below the peak when the warm-up ends
    (VISSL's interval_scaling: rescaled, fixed)."""
    decay_at: tuple[Length, ...] = ()
    """Points of the run at which schedule=steps multiplies the learning rate by `decay_factor`: [60%, 80%]."""
    decay_factor: Share = 0.1
    """Factor of the learning rate at each point of `decay_at`."""
    num_decays: Count | None = None
    """Number of steps of schedule=steps, instead of `decay_at`: they divide the run after the warm-up evenly, 3 steps
    into 4 parts."""
    values: tuple[Share, ...] = ()
    """Learning rates of schedule=steps as shares of the peak, [1, 0.5, 0.05], instead of `decay_factor`: one more than
    points in `decay_at`, or, without these, one for each of equal parts of the run after the warm-up."""
    restart_every: Every | None = None
    """Length of the first period of schedule=restarts."""
    restart_growth: Annotated[int, Within(1, 100)] = 1
    """Length of each period of schedule=restarts, as a multiple of the one before it."""
    restart_wave: Literal["half", "full"] = "half"
    """Return to the peak in schedule=restarts: a jump at the end of each period, or another half cosine of that length;
    the peak then changes between the two, where the learning rate is lowest."""
    restart_peak: Literal["factor", "cosine"] = "factor"
    """Height of each peak of schedule=restarts: `restart_factor` times the last one, or the value at that point of one
    cosine from the warm-up to the end of the run; full waves take it one period ahead, also at the first (VISSL)."""
    restart_factor: Share = 1.0
    """Peak of each period of schedule=restarts as a share of the one before it."""
    phases: tuple[Phase, ...] = ()
    """The whole course of the learning rate in parts, instead of `schedule`, `warmup` and their settings:
    [{shape: linear, length: 10%, start: 0.1, end: 1}, {shape: cosine, length: 90%, start: 1, end: 0}]."""
    stretch: Annotated[float, Within(1, 100)] = 1.0
    """Length of the schedules of learning rate and weight decay, as a multiple of the run's: with 1.25 (MSN) the run
    ends after four fifths of them. For cosines, straight lines and polynomials; the warm-up keeps its length."""
    weight_decay: Annotated[float, Within(0, 1000)] = 1e-6
    """L2 penalty on the weights."""
    weight_decay_end: Annotated[float, Within(0, 1000)] | None = None
    """Weight decay at the end of the run. Default: it stays at `weight_decay`."""
    weight_decay_schedule: Literal["cosine", "linear"] = "cosine"
    """Course of the weight decay to `weight_decay_end`: half a cosine or a straight line."""
    exclude_norm_and_bias: bool = True
    """Leave one-dimensional parameters (biases, normalisation) out of weight decay and of layer-wise scaling."""
    exclude_norm: bool | None = None
    """The same for normalisation and other one-dimensional scales only. Default: `exclude_norm_and_bias`."""
    exclude_bias: bool | None = None
    """The same for biases only. Biases of normalisation are left out if either applies. Default:
    `exclude_norm_and_bias`."""
    decay_tokens: tuple[Token, ...] = ()
    """Names of learned tokens and position embeddings that decay like weights; others do not decay."""
    layer_decay: Annotated[float, Within(0, 1, above=True)] | None = None
    """Factor d of the learning rate from each layer of the backbone to the one below it: layer i of L gets
    d^(L + 1 - i), parameters outside the backbone 1 (BEiT, arXiv 2106.08254). Embeddings and the stem are layer 0; each
    block of a ViT, or stage of a convolutional network, is a layer. Default: one rate for all."""
    patch_lr_scale: Annotated[float, Within(0, 1000)] = 1.0
    """Factor of the learning rate of a ViT's map from patches to tokens; 0.2 in DINOv2."""
    head_lr: Annotated[float, Within(0, 1e6)] | None = None
    """Peak learning rate of parameters outside the backbone, scaled with the batch like `lr`. Default: `lr`."""
    head_weight_decay: Annotated[float, Within(0, 1000)] | None = None
    """Constant weight decay of parameters outside the backbone. Default: that of the backbone."""


_IN_PHASES = ("schedule", "warmup", "warmup_start", "final_lr", "cosine_from")
"""Settings that phases replace."""
_BELONGS_TO = {
    "decay_at": ("steps", "has no such points"),
    "num_decays": ("steps", "has no steps"),
    "values": ("steps", "has no steps"),
    "restart_every": ("restarts", "has no restarts"),
    "restart_growth": ("restarts", "has no restarts"),
    "restart_wave": ("restarts", "has no restarts"),
    "restart_peak": ("restarts", "has no restarts"),
    "restart_factor": ("restarts", "has no restarts"),
    "cosine_from": ("cosine", "is not a cosine"),
    "power": ("polynomial", "is not a polynomial"),
}
"""The only schedule of a setting, and why others cannot use it."""


def course_problems(optim: OptimConfig) -> Iterator[str]:
    """Yield a line for each setting of the schedules that contradicts another."""
    defaults = {field.name: field.default for field in dataclasses.fields(optim)}
    if optim.phases:
        yield from _find_phase_problems(optim, defaults)
    for name, (schedule, lack) in _BELONGS_TO.items():
        is_reported = optim.phases and name in _IN_PHASES
        if getattr(optim, name) != defaults[name] and optim.schedule != schedule and not is_reported:
            yield (
                f"optim.{name}: schedule={optim.schedule} {lack}; set optim.schedule={schedule}, "
                f"or {'leave it out' if defaults[name] in ((), None) else f'optim.{name}={defaults[name]}'}"
            )
    if optim.stretch != 1 and (optim.phases or optim.schedule not in ("cosine", "linear", "polynomial")):
        what = "phases" if optim.phases else f"schedule={optim.schedule}"
        yield (
            f"optim.stretch: {optim.stretch:g} does not apply to {what}, which has fixed points in the run; set "
            "optim.stretch=1, or optim.schedule=cosine, linear or polynomial"
        )
    if optim.schedule == "steps":
        yield from _find_step_problems(optim)
    if optim.schedule == "restarts":
        yield from _find_restart_problems(optim)
    if optim.schedule == "inverse_sqrt" and not optim.warmup.value:
        yield (
            f"optim.schedule: inverse_sqrt begins at the end of a warm-up, but optim.warmup={optim.warmup}; "
            "set optim.warmup=5%"
        )
    if optim.weight_decay_schedule != "cosine" and optim.weight_decay_end is None:
        yield (
            f"optim.weight_decay_schedule: {optim.weight_decay_schedule} leads to optim.weight_decay_end, which is "
            "not set; give it, or leave both out"
        )


def _find_phase_problems(optim: OptimConfig, defaults: dict[str, Any]) -> Iterator[str]:
    mixed = [name for name in _IN_PHASES if getattr(optim, name) != defaults[name]]
    if mixed:
        changed = ", ".join(f"optim.{name}={getattr(optim, name)}" for name in mixed)
        back = " ".join(f"optim.{name}={defaults[name]}" for name in mixed)
        yield f"optim.phases: they replace {changed}; set {back}, which is the default, or no phases"
    if optim.phases[0].shape == "inverse_sqrt":
        yield (
            "optim.phases[0].shape: inverse_sqrt is infinite at the beginning of the run; put a linear phase before it"
        )


def _find_step_problems(optim: OptimConfig) -> Iterator[str]:
    if not (optim.decay_at or optim.num_decays or optim.values):
        yield (
            "optim.schedule: steps needs the points of its steps; set optim.decay_at=[60%,80%], or optim.num_decays=2 "
            "for equal parts"
        )
    if optim.num_decays and (optim.decay_at or optim.values):
        other = "decay_at" if optim.decay_at else "values"
        yield (
            f"optim.num_decays: {optim.num_decays} even steps, but optim.{other} defines other steps; leave one of "
            "them out"
        )
    elif optim.values and optim.decay_at and len(optim.values) != len(optim.decay_at) + 1:
        yield (
            f"optim.values: {len(optim.values)} values, but {len(optim.decay_at)} points in optim.decay_at make "
            f"{len(optim.decay_at) + 1} parts; give a value for each part"
        )


def _find_restart_problems(optim: OptimConfig) -> Iterator[str]:
    if optim.restart_every is None:
        yield "optim.schedule: restarts needs the length of the first period; set optim.restart_every=25%"
    if optim.restart_wave == "full" and optim.restart_growth != 1:
        yield (
            f"optim.restart_growth: {optim.restart_growth}, but full waves have periods of one length; set "
            "optim.restart_growth=1, or optim.restart_wave=half"
        )
    if optim.restart_peak == "cosine" and optim.restart_factor != 1:
        yield (
            f"optim.restart_factor: {optim.restart_factor:g}, but optim.restart_peak=cosine defines the peaks; set "
            "optim.restart_factor=1, or optim.restart_peak=factor"
        )
