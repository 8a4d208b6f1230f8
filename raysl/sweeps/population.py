"""Population based training: all members train together, and the worst regularly continue from the best ones' weights.

Jaderberg et al. 2017, arXiv 1711.09846: truncation selection as exploit, and perturbing or resampling as explore
(section 4.1). Members are compared only when all have finished the same epoch, so the choice depends only on their
results and the seed. A replaced member stops. A new run takes its place, starting from the donor's full checkpoint
(`raysl.runs.fork`); a run's name follows from its settings and its parent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raysl.config.dump import to_dict
from raysl.config.schema import RunConfig
from raysl.hashing import hash_text, hash_words
from raysl.leaderboard.entry import Objective
from raysl.sweeps.distributions import LISTS, Distribution
from raysl.sweeps.draws import Draws
from raysl.sweeps.judging import Verdict
from raysl.sweeps.record import Record
from raysl.sweeps.schema import SweepConfig
from raysl.sweeps.search import WAIT, IsKept, Wait, trial_of
from raysl.sweeps.space import Space, present_in
from raysl.sweeps.trial import ALONE, ParentTrial, Trial

FACTORS = (0.8, 1.2)
"""Factors that perturb a number, down and up."""


@dataclass(frozen=True)
class Member:
    """A member of a population at the end of an interval.

    Args:
        value: result; None if it failed.
    """

    trial: Trial
    value: float | None


class PopulationSearch:
    """Produces the trials of a population; one trial = one member for one interval.

    Args:
        bases: the one configuration that all trials change, by name.
        fork: makes a new run start from its parent's checkpoint; called before any run of its interval starts.
        stored_choices: stores the members chosen for later intervals, and returns those that an earlier start of the
            sweep chose; default: they are chosen anew.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        bases: Mapping[str, RunConfig],
        seed: int,
        fork: Callable[[Trial], None],
        stored_choices: Draws | None = None,
    ) -> None:
        self.sweep = sweep
        self.base = bases[ALONE]
        self.space = Space.of(sweep.space)
        self.seed = seed
        self.fork = fork
        self.stored_choices = stored_choices
        self.ends = interval_ends(sweep.interval, self.base.train.epochs)
        present = present_in(to_dict(self.base))
        settings = [self.space.at(seed, index, {}, present) for index in range(sweep.trials)]
        self.members = [trial_of(draw, self.base.seed + index, ALONE) for index, draw in enumerate(settings)]
        self.num_drawn = 0
        self.replaced: dict[str, Verdict] = {}
        self.has_all = False

    def num_trials(self, num_dropped: int = 0) -> int:
        """Number of members times number of intervals."""
        return len(self.members) * len(self.ends)

    def next(self, records: Sequence[Record], is_kept: IsKept) -> Trial | Wait | None:
        """Return the next member's trial: all members of the first interval, then all of the second, and so on.

        `WAIT` until all members have finished the interval before; None after the last interval.
        """
        interval, index = divmod(self.num_drawn, len(self.members))
        if interval >= len(self.ends):
            return None
        if index == 0 and interval > 0:
            next_members = self._stored_members() or self._select_members(interval, records, is_kept)
            if isinstance(next_members, Wait):
                return next_members
            self._replace(next_members, self.ends[interval - 1])
        self.num_drawn += 1
        return replace(self.members[index], until=self._until(interval))

    def _stored_members(self) -> list[Trial]:
        """Return the members of the next interval as an earlier start chose them; empty unless all are stored."""
        if self.stored_choices is None:
            return []
        numbers = range(self.num_drawn, self.num_drawn + len(self.members))
        trials = [trial for number in numbers if (trial := self.stored_choices.at(number)) is not None]
        return trials if len(trials) == len(self.members) else []

    def _until(self, interval: int) -> int | None:
        """Return the epoch at which an interval ends; None: train to the end."""
        return self.ends[interval] if interval < len(self.ends) - 1 else None

    def _select_members(self, interval: int, records: Sequence[Record], is_kept: IsKept) -> list[Trial] | Wait:
        """Choose the members of an interval by the results of the one before, and store the choice."""
        record_index = {(record.trial.name, record.trial.until): index for index, record in enumerate(records)}
        indices = [record_index[trial.name, self._until(interval - 1)] for trial in self.members]
        # True: finished, False: failed or stopped, None: not known yet
        if any(is_kept(index) is None for index in indices):
            return WAIT
        epoch = self.ends[interval - 1]
        members = [
            Member(trial, None if records[index].failure else records[index].course.at(epoch))
            for trial, index in zip(self.members, indices, strict=True)
        ]
        next_members = select(members, self.space, self.sweep, (self.seed, interval), epoch)
        if self.stored_choices is not None:
            values = {member.trial.name: None if member.value is None else [member.value] for member in members}
            for number, trial in enumerate(next_members, start=self.num_drawn):
                self.stored_choices.keep(number, trial, values)
        return next_members

    def _replace(self, next_members: list[Trial], epoch: int) -> None:
        """Fork the new members' runs and continue with the members of the next interval."""
        for old, new in zip(self.members, next_members, strict=True):
            if new.name != old.name:
                # a sweep that is started again comes here again; a fork that is complete stays as it is
                self.fork(new)
                reason = f"replaced at epoch {epoch} by {new.name}, from the weights of {new.parents[0].trial}"
                self.replaced[old.name] = Verdict(float(epoch), reason)
        self.members = next_members


def interval_ends(interval: int, epochs: int) -> list[int]:
    """Return the epochs at which members are compared, and the last epoch."""
    return [*range(interval, epochs, interval), epochs]


def select(
    members: Sequence[Member], space: Space, sweep: SweepConfig, random_key: tuple[int, int], epoch: int
) -> list[Trial]:
    """Return the members of the next interval: the worst continue from the weights of the best.

    Args:
        sweep: gives `exploit`, `resample` and the metric that ranks.
        random_key: seed of the sweep, and number of the next interval.
        epoch: epoch that all members have finished.

    Returns:
        As many trials, in the same order; members that are not replaced keep their trial.
    """
    objective: Objective = sweep.early
    ranking = sorted(range(len(members)), key=lambda index: (objective.key(members[index].value), index))
    num_replaced = min(len(members) // 2, math.ceil(sweep.exploit * len(members)))
    best, worst = ranking[:num_replaced], ranking[len(ranking) - num_replaced :]
    next_members = [member.trial for member in members]
    for index in worst:
        donor = members[best[hash_words(*random_key, index) % num_replaced]]
        # a donor with an equal result has nothing better to give
        if donor.value is None or objective.key(donor.value) >= objective.key(members[index].value):
            continue
        parents = (ParentTrial(donor.trial.name, epoch), *donor.trial.parents)
        settings = explore(donor.trial.settings, space, sweep.resample, (*random_key, index))
        # the replaced member's seed, so that no two members train with the same one
        next_members[index] = Trial(settings, members[index].trial.seed, ALONE, parents)
    return next_members


def explore(settings: Mapping[str, Any], space: Space, resample: float, random_key: tuple[int, ...]) -> dict[str, Any]:
    """Return new settings from a donor's: each is drawn anew with probability `resample`, otherwise perturbed.

    A number becomes 0.8 or 1.2 times as large, inside its range; a value of a list is replaced by one next to it.
    """
    changed = {}
    for name, value in settings.items():
        # three numbers in [0, 1): draw anew or perturb, the new value, the direction
        uniforms = [hash_words(*random_key, hash_text(name), index) / 2**64 for index in range(3)]
        distribution = space.distributions[name]
        if uniforms[0] < resample:
            changed[name] = distribution.at(uniforms[1])
        else:
            changed[name] = perturb(value, distribution, uniforms[2])
    return changed


def perturb(value: Any, distribution: Distribution, uniform: float) -> Any:
    """Return a value near another one: below it if `uniform`, in [0, 1), is below 0.5, otherwise above it."""
    is_up = uniform >= 0.5
    if distribution.kind in LISTS:
        index = distribution.values.index(value) + (1 if is_up else -1)
        return distribution.values[min(max(index, 0), len(distribution.values) - 1)]
    # below 0 the factors move a value the other way
    moved = value * FACTORS[is_up]
    step = distribution.step or (1 if distribution.is_whole else None)
    # 0.8 or 1.2 times a small number may round to the same number
    if step is not None and distribution.rounded(moved) == value:
        moved = value + step * (1 if is_up else -1)
    return distribution.rounded(moved)
