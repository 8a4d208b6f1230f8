"""Settings of every optimizer: the course of its learning rate and weight decay, and what is left out of them."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from raysl.config.component import ComponentConfig
from raysl.config.ranges import Count, Every, Length, Positive, Share, Within
from raysl.schedule import Duration

Token = Literal["cls_token", "reg_token", "mask_token", "pos_embed"]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One of several parts in a row of the course of the learning rate."""

    shape: Literal["constant", "linear", "cosine", "polynomial", "inverse_sqrt"]
    """Its curve. inverse_sqrt falls with the root of the updates done since the run began: start * sqrt(a / i) at
    update i of a phase that begins at update a."""
    length: Every
    """How long it lasts; all phases together last as long as the run."""
    start: Share
    """Learning rate at its beginning, as a share of the peak."""
    end: Share | None = None
    """Learning rate at its end, as a share of the peak. Default: `start`."""
    over: Literal["phase", "run"] = "phase"
    """Where its curve begins and ends: with the phase, or with the run, of which the phase then shows a part."""
    power: Positive = 1.0
    """Exponent p of a polynomial, end + (start - end) * (1 - x)^p."""

    def __post_init__(self) -> None:
        if self.shape == "constant" and self.end not in (None, self.start):
            raise ValueError("a constant phase stays at its start; leave out end, or set shape=linear")
        if self.shape == "inverse_sqrt" and (self.end is not None or self.over == "run"):
            raise ValueError(
                "an inverse_sqrt phase ends where its curve leads, and counts from the run's beginning "
                "anyway; leave out end and over"
            )
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
    """Global batch size that `lr` is stated for."""
    schedule: Literal["cosine", "constant", "linear", "polynomial", "inverse_sqrt", "steps", "restarts"] = "cosine"
    """Course of the learning rate after the warm-up: down to `final_lr` along half a cosine, a straight line or a
    polynomial; the peak all along; peak * sqrt(warm-up / updates done); steps down at `decay_at`; or half a cosine
    again and again, each time of `restart_every`."""
    update_every: Literal["step", "epoch"] = "step"
    """When learning rate and weight decay change: at every update, or only where an epoch begins, to the values of its
    first update. A warm-up shorter than an epoch is then not seen."""
    warmup: Length = field(default=Duration.parse("10ep"))
    """Linear rise to the peak: epochs (10ep), steps (500st) or a share of the run (5%)."""
    warmup_start: Share = 0.0
    """Learning rate of the first step of the warm-up, as a share of the peak. From 0 the warm-up rises by equal parts,
    and the first step has one of them."""
    final_lr: Share = 0.0
    """Learning rate at the end of a cosine, a straight line or a polynomial, as a share of the peak."""
    power: Positive = 1.0
    """Exponent p of schedule=polynomial, final_lr + (1 - final_lr) * (1 - x)^p of the peak; 0.9 in segmentation, 1 is a
    straight line."""
    cosine_from: Literal["warmup", "start"] = "warmup"
    """Where the cosine begins: at the peak after the warm-up, or with the run, so that it is below the peak when the
    warm-up ends (VISSL's interval_scaling: rescaled, fixed)."""
    decay_at: tuple[Length, ...] = ()
    """Points of the run at which schedule=steps multiplies the learning rate by `decay_factor`: [60%, 80%]."""
    decay_factor: Share = 0.1
    """Factor of the learning rate at each point of `decay_at`."""
    num_decays: Count | None = None
    """How often schedule=steps multiplies by `decay_factor` in place of `decay_at`: what follows the warm-up is parted
    evenly, 3 steps make 4 parts."""
    values: tuple[Share, ...] = ()
    """Learning rates of schedule=steps as shares of the peak, [1, 0.5, 0.05], in place of `decay_factor`: one more than
    points in `decay_at`, or, without those, one for each even part of what follows the warm-up."""
    restart_every: Every | None = None
    """Length of the first period of schedule=restarts."""
    restart_growth: Annotated[int, Within(1, 100)] = 1
    """How many times as long as the one before it each further period of schedule=restarts is."""
    restart_wave: Literal["half", "full"] = "half"
    """Way back up of schedule=restarts: a jump at the end of each period, or another half cosine of that length; the
    peak then changes between the two, where the learning rate is lowest."""
    restart_peak: Literal["factor", "cosine"] = "factor"
    """Height of each peak of schedule=restarts: `restart_factor` times the last one, or the value that one cosine from
    the warm-up to the end of the run has there; full waves look one period ahead for it, at the first too (VISSL)."""
    restart_factor: Share = 1.0
    """Peak of each period of schedule=restarts as a share of the one before it."""
    phases: tuple[Phase, ...] = ()
    """The whole course of the learning rate in parts, in place of `schedule` and `warmup` and what belongs to them:
    [{shape: linear, length: 10%, start: 0.1, end: 1}, {shape: cosine, length: 90%, start: 1, end: 0}]."""
    stretch: Annotated[float, Within(1, 100)] = 1.0
    """Length of the courses of learning rate and weight decay, as a multiple of the run's: at 1.25 (MSN) the run ends
    when four fifths of them are done. For cosines, straight lines and polynomials; the warm-up keeps its length."""
    weight_decay: Annotated[float, Within(0, 1000)] = 1e-6
    """L2 penalty on the weights."""
    weight_decay_end: Annotated[float, Within(0, 1000)] | None = None
    """Weight decay at the end of the run. Default: `weight_decay` all along."""
    weight_decay_schedule: Literal["cosine", "linear"] = "cosine"
    """Course of the weight decay to `weight_decay_end`: half a cosine or a straight line."""
    exclude_norm_and_bias: bool = True
    """Leave one-dimensional parameters (biases, normalisation) out of weight decay and of layer-wise scaling."""
    exclude_norm: bool | None = None
    """The same of normalisation and other scales of one dimension alone. Default: `exclude_norm_and_bias`."""
    exclude_bias: bool | None = None
    """The same of biases alone, those of normalisation among them, which are left out if either is. Default:
    `exclude_norm_and_bias`."""
    decay_tokens: tuple[Token, ...] = ()
    """Learned tokens and position embeddings that decay like weights, by their names; others do not."""
    layer_decay: Annotated[float, Within(0, 1, above=True)] | None = None
    """Factor d of the learning rate from each layer of the backbone to the one below it: of L layers, layer i gets
    d^(L + 1 - i), what is not of the backbone 1 (BEiT, arXiv 2106.08254). Embeddings and the stem are layer 0, then
    each block of a ViT, or each stage of a convolutional network, is one. Default: one rate for all."""
    patch_lr_scale: Annotated[float, Within(0, 1000)] = 1.0
    """Factor of the learning rate of a ViT's map from patches to tokens; 0.2 in DINOv2."""
    head_lr: Annotated[float, Within(0, 1e6)] | None = None
    """Peak learning rate of what is not of the backbone, scaled with the batch as `lr` is. Default: `lr`."""
    head_weight_decay: Annotated[float, Within(0, 1000)] | None = None
    """Weight decay all along of what is not of the backbone. Default: that of the backbone."""
