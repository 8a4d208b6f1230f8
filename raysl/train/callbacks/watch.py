"""Advice to the user, once, when training waits for its data, embeddings collapse or a logged number is not finite."""

import math

from typing_extensions import override

from raysl import distributed as dist
from raysl.config.config_files import packaged_file
from raysl.methods.method import Method
from raysl.nn.collapse import COLLAPSE
from raysl.train.callbacks.callback import Callback, Run, Step
from raysl.train.disk import Disk

MUCH = 0.2  # share of the time
LINES = 5  # logged lines in a row: more than a slow start has


class DataWait(Callback):
    """Notes once that training spends much of its time waiting for data, and what may help."""

    def __init__(self, disk: Disk, augment_in_task: bool) -> None:
        self.disk = disk
        self.augment_in_task = augment_in_task
        self.shares: list[float] = []
        self.is_noted = False

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        if self.is_noted or "data_wait" not in line or not dist.is_main():
            return
        self.shares = [*self.shares, line["data_wait"]][-LINES:]
        if len(self.shares) == LINES and min(self.shares) > MUCH:
            self.is_noted = True
            share = sum(self.shares) / LINES
            other = "device" if self.augment_in_task else "task"
            self.disk.note(
                f"data wait {share:.0%}: training waits for images; add CPU nodes, or set data.augment_on={other}, "
                "or a smaller method.views.size"
            )


SPREAD = COLLAPSE[0]
SHARE = 1e-3  # of the first spread
STEPS = 100  # in a row: one bad step is not a collapse
ENTROPY, KL = "teacher_entropy", "kl"
UNIFORM = 0.999  # of the entropy of equal scores: balanced scores of a healthy run reach 0.99
LITTLE_KL = 0.1  # in nats; runs that do not collapse have 0.2 and more
ALIKE_STEPS = 200  # in a row, and a tenth of the run: a healthy run begins so
REMEDIES = (
    "the usual remedies are a lower optim.lr, a longer optim.warmup, a larger train.batch_size, and the paper's values "
    "for what keeps its method from collapsing (a predictor, centring, the teacher's momentum, the temperatures)"
)
SCORE_REMEDIES = (
    "the usual remedies are a lower method.teacher_temp, fewer method.head.num_prototypes, method.head.norm=true, a "
    "smaller method.momentum and a higher optim.lr"
)
NAN_REMEDIES = (
    "the usual remedies are a lower optim.lr, a longer optim.warmup, train.clip_grad, and train.precision=fp32"
)


class CollapseWatch(Callback):
    """Notes once that a run has collapsed, by what number, and what may help.

    * The embeddings are all alike: `embedding_std` stays below a thousandth of its first value for 100 steps.
    * A teacher gives all images the same scores: DINO's `kl` stays below 0.1 (section 5.3), or without it
      `teacher_entropy` at 99.9 % or more of that of equal scores, for 200 steps and a tenth of the run.

    The note names the packaged recipe `small/METHOD` where there is one.

    Notes once, too, which logged number became NaN or infinite while the loss stayed finite; a loss that is not finite
    ends the run (`raysl.train.late`). Only logged lines are read, so no step waits for a GPU.
    """

    stored = ("start", "low_since", "same_since", "is_collapse_told", "is_nan_told")

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.start: float | None = None
        self.low_since: int | None = None
        self.same_since: int | None = None
        self.is_collapse_told = False
        self.is_nan_told = False

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        self._look_for_nan(step, line)
        method = run.state.method
        if self.is_collapse_told:
            return
        sign = self._alike(step, line.get(SPREAD)) or self._same(method, step, line)
        if sign is not None:
            self.is_collapse_told = True
            self._note(sign + _small_recipe(method))

    def _alike(self, step: Step, spread: float | None) -> str | None:
        if spread is None or not math.isfinite(spread):
            return None
        if self.start is None:
            self.start = spread
        self.low_since = _since(self.low_since, step, is_so=spread < SHARE * self.start)
        if self.low_since is None or step.index - self.low_since < STEPS:
            return None
        return (
            f"the embeddings have collapsed: {SPREAD} was {self.start:.3g} at the start, and below a thousandth of "
            f"that since step {self.low_since} (now {spread:.3g}); {REMEDIES}"
        )

    def _same(self, method: Method, step: Step, line: dict[str, float]) -> str | None:
        most = method.most_entropy
        if most is None or ENTROPY not in line:
            return None
        name, told = (KL, f"below {LITTLE_KL}") if KL in line else (ENTROPY, f"{UNIFORM:.1%} or more of {most:.3g}")
        value = line[name]
        is_so = value < LITTLE_KL if name == KL else value >= UNIFORM * most
        self.same_since = _since(self.same_since, step, is_so)
        if self.same_since is None or step.index - self.same_since < max(ALIKE_STEPS, step.total // 10):
            return None
        return (
            "the teacher gives all images nearly the same scores, from which little is learned: "
            f"{name} has been {told} since step {self.same_since} (now {value:.3g}); {SCORE_REMEDIES}"
        )

    def _look_for_nan(self, step: Step, line: dict[str, float]) -> None:
        bad = [name for name, value in line.items() if not math.isfinite(value)]
        if bad and not self.is_nan_told:
            self.is_nan_told = True
            shown = ", ".join(f"{name} is {line[name]}" for name in bad)
            self._note(f"at step {step.index} {shown}, though the loss is finite; {NAN_REMEDIES}")

    def _note(self, event: str) -> None:
        if dist.is_main():
            self.disk.note(event)


def _since(before: int | None, step: Step, is_so: bool) -> int | None:
    """Return the step since which something is so without a break, or None."""
    if not is_so:
        return None
    return step.index if before is None else before


def _small_recipe(method: Method) -> str:
    recipe = f"small/{method.config.name}"
    return f"; {recipe} is the recipe for small batches and few images" if packaged_file(recipe) else ""
