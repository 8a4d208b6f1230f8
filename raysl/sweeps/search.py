"""Searches, and the one that draws trials independently, in a fixed order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

from raysl.config.dump import to_dict
from raysl.config.schema import RunConfig
from raysl.sweeps.judging import Verdict
from raysl.sweeps.record import Record
from raysl.sweeps.schema import SweepConfig
from raysl.sweeps.space import Present, Space, present_in
from raysl.sweeps.trial import Trial


class Wait:
    """Result of a search that has to wait for earlier trials."""


WAIT = Wait()
IsKept = Callable[[int], bool | None]


class Search(Protocol):
    """Draws trials: a pure function of the settings and of the results of earlier trials.

    Attributes:
        replaced: runs that others took the place of, and when, by their names.
        has_all: whether all trials that a scheduler compares have been drawn.
    """

    replaced: dict[str, Verdict]
    has_all: bool

    def next(self, records: Sequence[Record], is_kept: IsKept) -> Trial | Wait | None:
        """Return the next trial; `WAIT` if it depends on trials that run, None after the last.

        Args:
            records: trials so far, in the order of drawing, equal ones once.
            is_kept: whether the trial of a place has come to its end, and no scheduler has stopped it; None where that
                is not known yet.
        """
        ...

    def num_trials(self, num_dropped: int = 0) -> int:
        """Return the largest number of trials that there can be.

        Args:
            num_dropped: choices that were stopped early or failed, whose further seeds are not run.
        """
        ...


class RandomSearch:
    """Draws, each with every grid value and every configuration; then the same again with further seeds."""

    def __init__(self, sweep: SweepConfig, bases: Mapping[str, RunConfig], seed: int) -> None:
        self.sweep = sweep
        self.space = Space.of(sweep.space)
        self.bases = bases
        self.seed = seed
        self.present: dict[str, Present] = {name: present_in(to_dict(base)) for name, base in bases.items()}
        self.firsts = self._first_seeds()
        self.others: Iterator[Trial] | None = None
        self.replaced: dict[str, Verdict] = {}
        self.has_all = False

    @property
    def num_turns(self) -> int:
        """Number of draws."""
        return self.sweep.trials if self.space.is_random else 1

    @cached_property
    def num_choices(self) -> int:
        """Number of choices of settings, equal draws counted once."""
        return len({trial.name for trial in self._first_seeds()})

    def num_trials(self, num_dropped: int = 0) -> int:
        return self.num_choices * self.sweep.seeds - num_dropped * (self.sweep.seeds - 1)

    def next(self, records: Sequence[Record], is_kept: IsKept) -> Trial | Wait | None:
        if (first := next(self.firsts, None)) is not None:
            return first
        self.has_all = True
        if self.others is None and self.sweep.seeds > 1:
            kept = [True for _ in records]
            if self.sweep.scheduler != "none":
                looked = [is_kept(index) for index in range(len(records))]
                if None in looked:
                    return WAIT
                kept = [bool(own) for own in looked]
            self.others = self._further_seeds([record.trial for record, own in zip(records, kept, strict=True) if own])
        return None if self.others is None else next(self.others, None)

    def _first_seeds(self) -> Iterator[Trial]:
        for turn in range(self.num_turns):
            for name, base in self.bases.items():
                for grid in self.space.grid():
                    yield trial_of(self.space.at(self.seed, turn, grid, self.present[name]), base.seed, name)

    def _further_seeds(self, trials: Sequence[Trial]) -> Iterator[Trial]:
        return chain.from_iterable(
            (Trial(trial.settings, trial.seed + further, trial.config, is_repeat=True) for trial in trials)
            for further in range(1, self.sweep.seeds)
        )


def trial_of(draw: Mapping[str, Any], seed: int, config: str) -> Trial:
    """Return the trial of a draw, which may contain a seed."""
    return Trial({key: value for key, value in draw.items() if key != "seed"}, int(draw.get("seed", seed)), config)
