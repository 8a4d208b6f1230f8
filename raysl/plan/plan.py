"""The numbers that a run's settings mean on a given number of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from raysl.config.schema import OptimConfig, RunConfig, TrainConfig
from raysl.data.order import Order, default_lanes, rank_share
from raysl.data.source import Split
from raysl.errors import ConfigError
from raysl.optim.course import check_phases
from raysl.plan.adapt import adapt, batch_for, course_length
from raysl.plan.reference import for_workers
from raysl.process.screen import counted
from raysl.schedule import Duration, Step

ClipOver = Literal["model", "part", "tensor"]
"""Which gradients share one norm when they are clipped, see `train.clip_grad_over`."""


@dataclass(frozen=True)
class TrainPlan:
    """Numbers of a run, derived from its settings and its number of ranks.

    Args:
        batch_size: images in a global batch.
        lanes: fixed parts of a global batch.
        epoch_len: updates in an epoch.
        total_steps: updates in the run.
        last_rows: images in the last global batch of an epoch, fewer than `batch_size` without `data.drop_last`.
        world: ranks.
        precision: `fp32` or `bf16`.
        clip_grad, clip_grad_value: largest norm of the gradient, and largest value in it, or None.
        clip_grad_over: gradients that share one norm.
        accumulate: parts of a batch, computed one after another.
        window, exact_below, drop_last: settings of the order of samples, see `DataConfig`.
        optim: optimizer settings, for the course of the learning rate.
        log_every, checkpoint_every: how often these happen.
    """

    seed: int
    batch_size: int
    lanes: int
    epoch_len: int
    total_steps: int
    last_rows: int
    world: int
    precision: str
    clip_grad: float | None
    clip_grad_value: float | None
    accumulate: int
    window: int | None
    exact_below: int | None
    drop_last: bool
    optim: OptimConfig
    log_every: Duration
    checkpoint_every: Duration
    clip_grad_over: ClipOver = "model"

    @classmethod
    def from_config(
        cls,
        config: RunConfig,
        num_samples: int,
        world: int = 1,
        device_type: str = "cpu",
        lanes: int | None = None,
    ) -> "TrainPlan":
        """Return the plan of a run over `num_samples` images.

        Args:
            world: ranks.
            device_type: where they train.
            lanes: number of lanes. Default: `data.lanes`, or those of a dataset with any number of read units.

        >>> import raysl
        >>> plan = TrainPlan.from_config(raysl.load_config("simclr", ["train.batch_size=100"]), num_samples=1000)
        >>> plan.epoch_len, plan.total_steps
        (10, 1000)

        Raises:
            ConfigError: if the images do not fill a batch, there are more workers than lanes, the last batch of an
                epoch leaves a worker without images, or the phases of the learning rate do not fill the run.
        """
        # adapted first: until they are scaled, the settings are those for the reference workers
        config = for_workers(adapt(config, num_samples))
        train = config.train
        lanes = lanes or config.data.lanes or default_lanes(train.batch_size)
        rest = 0 if config.data.drop_last else num_samples % train.batch_size
        _check_batches(config, num_samples, lanes, world)
        total_steps, epoch_len = course_length(config, num_samples)
        check_phases(config.optim, total_steps, epoch_len)
        precision = train.precision
        if precision == "auto":
            precision = "bf16" if device_type == "cuda" else "fp32"
        return cls(
            seed=config.seed,
            batch_size=train.batch_size,
            lanes=lanes,
            epoch_len=epoch_len,
            total_steps=total_steps,
            last_rows=rest or train.batch_size,
            world=world,
            precision=precision,
            clip_grad=train.clip_grad,
            clip_grad_value=train.clip_grad_value,
            clip_grad_over=train.clip_grad_over,
            accumulate=train.accumulate,
            window=config.data.window,
            exact_below=config.data.exact_below,
            drop_last=config.data.drop_last,
            optim=config.optim,
            log_every=train.log_every,
            checkpoint_every=train.checkpoint_every,
        )

    def order(self, split: Split) -> Order:
        """Return the order of a split's images in global batches."""
        return Order(
            seed=self.seed,
            fingerprint=split.fingerprint,
            unit_sizes=split.read_units,
            batch_size=self.batch_size,
            lanes=self.lanes,
            window=self.window,
            is_exact=is_exact(split, self.exact_below),
            drop_last=self.drop_last,
            mix=split.mix,
        )

    @property
    def stored_order(self) -> dict[str, int]:
        """Version and lanes of the order of samples, which a checkpoint stores since defaults may change."""
        return {"version": Order.version, "lanes": self.lanes}

    def step(self, index: int) -> Step:
        """Return the point in training after `index` updates."""
        return Step(index, self.total_steps, self.epoch_len)

    def batch_rows(self, step: Step) -> int:
        """Return the number of images in the global batch of a step."""
        return self.last_rows if step.in_epoch == step.epoch_len - 1 else self.batch_size

    def weight(self, num_rows: int, step: Step) -> float:
        """Return the factor of a rank's mean loss that makes the mean over ranks the mean over the global batch."""
        return num_rows * self.world / self.batch_rows(step)

    @property
    def rows(self) -> list[int]:
        """Number of images of a global batch that each rank holds."""
        return list(_shares(self.batch_size, self.lanes, self.world))

    def shares(self, step: Step) -> list[int]:
        """Return the number of images of a step's global batch that each rank holds."""
        return list(_shares(self.batch_rows(step), self.lanes, self.world))

    def parts(self, step: Step, rank: int) -> list[Sequence[int]]:
        """Return the rows of each part of a rank's batch, as indices into that batch."""
        return [ranks[rank] for ranks in _parts(self.batch_rows(step), self.lanes, self.world, self.accumulate)]

    def part_shares(self, step: Step) -> list[list[int]]:
        """Return for each part the number of its images that each rank holds."""
        parts = _parts(self.batch_rows(step), self.lanes, self.world, self.accumulate)
        return [[len(rows) for rows in ranks] for ranks in parts]

    @property
    def least_rows(self) -> int:
        """Number of images in the smallest part of a batch over all ranks; without accumulation, in a batch."""
        batches = [_parts(rows, self.lanes, self.world, self.accumulate) for rows in (self.batch_size, self.last_rows)]
        return min(sum(map(len, ranks)) for parts in batches for ranks in parts)

    def check_even(self) -> None:
        """Refuse ranks with different numbers of rows.

        Raises:
            ConfigError: with batches or lanes that would divide.
        """
        if len(set(self.rows)) == 1:
            return
        if self.batch_size % self.world:
            low = self.batch_size // self.world * self.world
            ways = f"train.batch_size={low} or {low + self.world}" if low else f"train.batch_size={self.world}"
            raise ConfigError(
                f"batch {self.batch_size} is not divisible by {self.world} workers; try {ways}, "
                "or train.uneven=true for ranks with uneven rows"
            )
        lanes = max(1, min(self.lanes, self.batch_size) // self.world) * self.world
        raise ConfigError(
            f"the {self.lanes} lanes of a batch of {self.batch_size} are not shared evenly by {self.world} workers; "
            f"try data.lanes={lanes}, or train.uneven=true for ranks with uneven rows"
        )


def is_exact(split: Split, exact_below: int | None) -> bool:
    """Return whether the order of a split is a permutation of all rows, see `DataConfig.exact_below`."""
    return split.is_random_access and (exact_below is None or split.num_samples < exact_below)


@cache
def _shares(num_rows: int, lanes: int, world: int) -> tuple[int, ...]:
    cuts = [rank_share(lanes, rank, world) for rank in range(world)]
    starts = [lane * num_rows // lanes for lane in range(lanes + 1)]
    return tuple(starts[cut.stop] - starts[cut.start] for cut in cuts)


@cache
def _parts(num_rows: int, lanes: int, world: int, num_parts: int) -> tuple[tuple[Sequence[int], ...], ...]:
    """Return for each part of a global batch and each rank the indices of its rows among those of the rank.

    A part has every `num_parts`-th lane, so the same images at any number of ranks.
    """
    starts = [lane * num_rows // lanes for lane in range(lanes + 1)]
    cuts = [rank_share(lanes, rank, world) for rank in range(world)]
    return tuple(
        tuple(
            tuple(
                row - starts[cut.start]
                for lane in range(cut.start, cut.stop)
                if lane % num_parts == part
                for row in range(starts[lane], starts[lane + 1])
            )
            for cut in cuts
        )
        for part in range(num_parts)
    )


def _check_batches(config: RunConfig, num_samples: int, lanes: int, world: int) -> None:
    """Refuse batches that the images do not fill, or that the workers cannot share."""
    train = config.train
    if num_samples < train.batch_size and config.data.drop_last:
        raise ConfigError(
            f"{num_samples} training images do not fill a batch of {train.batch_size}; "
            f"set train.batch_size={batch_for(num_samples)}, or another of at most {num_samples}"
        )
    if lanes > train.batch_size:
        raise ConfigError(f"data.lanes={lanes} is more than the batch of {train.batch_size}; give fewer lanes")
    if world > lanes:
        raise ConfigError(
            f"{world} workers are more than the {lanes} lanes of a batch of {train.batch_size}; "
            f"set train.workers={lanes} or less, or data.lanes={world} if the batch is that large"
        )
    rest = 0 if config.data.drop_last else num_samples % train.batch_size
    if rest and min(_shares(rest, lanes, world)) < 2:
        raise ConfigError(
            f"the last batch of an epoch has {rest} of {num_samples} images, fewer than 2 for one of "
            f"{counted(world, 'worker')}; set data.drop_last=true, or another train.batch_size"
        )
    if train.accumulate > 1:
        _check_parts(train, rest, lanes, world)


def _check_parts(train: TrainConfig, rest: int, lanes: int, world: int) -> None:
    """Refuse parts of a batch in which a worker has fewer than two images."""
    for num_rows in (train.batch_size, *([rest] if rest else [])):
        least = min(len(rows) for ranks in _parts(num_rows, lanes, world, train.accumulate) for rows in ranks)
        if least < 2:
            batch = f"a batch of {num_rows}" if num_rows == train.batch_size else f"the last batch, of {num_rows},"
            raise ConfigError(
                f"train.accumulate={train.accumulate} leaves {counted(least, 'image')} of {batch} to one of "
                f"{counted(world, 'worker')} in a part, which is made of whole lanes ({lanes} a batch): set "
                "train.accumulate to less, train.batch_size or data.lanes to more, or data.drop_last=true"
            )
