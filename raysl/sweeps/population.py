"""Population based training: all members train together, and the worst regularly continue from the best ones' weights.

Jaderberg et al. 2017, arXiv 1711.09846: truncation selection as exploit, and perturbing or resampling as explore
(section 4.1). Here a look is taken when all have come to the same epoch, so what is copied is a pure function of what
they came to and of the seed. A member that is replaced ends; in its place a new run begins with its donor's whole
checkpoint (`raysl.runs.fork`), and a run's name is that of its settings and its parent.
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
"""Factors that perturb a number."""


@dataclass(frozen=True)
class Member:
    """A member of a population at the end of an interval.

    Args:
        trial: what it trained with.
        value: its result; None if it failed.
    """

    trial: Trial
    value: float | None


class PopulationSearch:
    """The trials of a population: each trains a member to the end of an interval.

    Args:
        sweep: settings of the sweep.
        bases: what trials depart from: one configuration.
        seed: of what is drawn.
        fork: makes a new run go on from its parent's checkpoint; called before any run of its interval starts.
        draws: members of later intervals as an earlier start chose them, and where new ones are kept; default: they are
            chosen anew.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        bases: Mapping[str, RunConfig],
        seed: int,
        fork: Callable[[Trial], None],
        draws: Draws | None = None,
    ) -> None:
        self.sweep = sweep
        self.base = bases[ALONE]
        self.space = Space.of(sweep.space)
        self.seed = seed
        self.fork = fork
        self.draws = draws
        self.ends = interval_ends(sweep.interval, self.base.train.epochs)
        present = present_in(to_dict(self.base))
        first = [self.space.at(seed, turn, {}, present) for turn in range(sweep.trials)]
        self.members = [trial_of(draw, self.base.seed + place, ALONE) for place, draw in enumerate(first)]
        self.turn = 0
        self.replaced: dict[str, Verdict] = {}
        self.has_all = False

    def num_trials(self) -> int:
        """Count the parts of runs, one per member and interval."""
        return len(self.members) * len(self.ends)

    def next(self, records: Sequence[Record], is_kept: IsKept) -> Trial | Wait | None:
        generation, place = divmod(self.turn, len(self.members))
        if generation >= len(self.ends):
            return None
        if place == 0 and generation > 0:
            after = self._kept() or self._selected(generation, records, is_kept)
            if isinstance(after, Wait):
                return after
            self._replace(after, self.ends[generation - 1])
        self.turn += 1
        return replace(self.members[place], until=self._until(generation))

    def _kept(self) -> list[Trial]:
        """Return the members of the next interval as an earlier start chose them; empty if none did."""
        turns = range(self.turn, self.turn + len(self.members))
        kept = [] if self.draws is None else [self.draws.at(turn) for turn in turns]
        return [trial for trial in kept if trial is not None] if None not in kept else []

    def _until(self, generation: int) -> int | None:
        return self.ends[generation] if generation < len(self.ends) - 1 else None

    def _selected(self, generation: int, records: Sequence[Record], is_kept: IsKept) -> list[Trial] | Wait:
        """Choose the members of the next interval by the results of the last one."""
        ended = {(record.trial.name, record.trial.until): index for index, record in enumerate(records)}
        places = [ended[trial.name, self._until(generation - 1)] for trial in self.members]
        if any(is_kept(place) is None for place in places):
            return WAIT
        epoch = self.ends[generation - 1]
        members = [
            Member(trial, None if records[place].failure else records[place].course.at(epoch))
            for trial, place in zip(self.members, places, strict=True)
        ]
        after = select(members, self.space, self.sweep, (self.seed, generation), epoch)
        if self.draws is not None:
            values = {member.trial.name: None if member.value is None else [member.value] for member in members}
            for place, trial in enumerate(after):
                self.draws.keep(self.turn + place, trial, values)
        return after

    def _replace(self, after: list[Trial], epoch: int) -> None:
        """Continue with the members of the next interval."""
        for before, trial in zip(self.members, after, strict=True):
            if trial.name != before.name:
                self.fork(trial)
                why = f"replaced at epoch {epoch} by {trial.name}, from the weights of {trial.parents[0].trial}"
                self.replaced[before.name] = Verdict(float(epoch), why)
        self.members = after


def interval_ends(interval: int, epochs: int) -> list[int]:
    """Return the epochs at which members are compared, and the last one."""
    return [*range(interval, epochs, interval), epochs]


def select(
    members: Sequence[Member], space: Space, sweep: SweepConfig, key: tuple[int, int], epoch: int
) -> list[Trial]:
    """Return the members of the next interval: the worst share continues from weights of the best share.

    Args:
        members: as they are at an epoch.
        space: what varies.
        sweep: its `exploit` and `resample`.
        key: seed, and number of the interval.
        epoch: that they have come to.

    Returns:
        As many trials, in the same order; those not replaced are as they were.
    """
    objective: Objective = sweep.early
    order = sorted(range(len(members)), key=lambda place: (objective.key(members[place].value), place))
    num = min(len(members) // 2, math.ceil(sweep.exploit * len(members)))
    best, worst = order[:num], order[len(order) - num :]
    after = [member.trial for member in members]
    for place in worst:
        donor = members[best[hash_words(*key, place) % num]]
        if donor.value is None or objective.key(donor.value) >= objective.key(members[place].value):
            continue
        parents = (ParentTrial(donor.trial.name, epoch), *donor.trial.parents)
        settings = explore(donor.trial.settings, space, sweep.resample, (*key, place))
        after[place] = Trial(settings, members[place].trial.seed, ALONE, parents)
    return after


def explore(settings: Mapping[str, Any], space: Space, resample: float, key: tuple[int, ...]) -> dict[str, Any]:
    """Return settings near those of a donor: each drawn anew with a probability, else perturbed.

    A number becomes 0.8 or 1.2 times as large, inside its range; a value of a list makes way for one beside it.
    """
    changed = {}
    for name, value in settings.items():
        share = [hash_words(*key, hash_text(name), turn) / 2**64 for turn in range(3)]
        distribution = space.distributions[name]
        changed[name] = distribution.at(share[1]) if share[0] < resample else perturb(value, distribution, share[2])
    return changed


def perturb(value: Any, distribution: Distribution, share: float) -> Any:
    """Return a value near another one; a share in [0, 1) below or above a half decides the direction."""
    is_up = share >= 0.5
    if distribution.kind in LISTS:
        position = distribution.values.index(value) + (1 if is_up else -1)
        return distribution.values[min(max(position, 0), len(distribution.values) - 1)]
    moved = value * FACTORS[is_up]
    step = distribution.step or (1 if distribution.is_whole else None)
    if step is not None and distribution.rounded(moved) == value:
        moved = value + step * (1 if is_up else -1)
    return distribution.rounded(moved)
