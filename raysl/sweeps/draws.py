"""Draws that depend on results, kept in the sweep's folder: a later start has them as they were made.

Results may change after they were drawn from, when a trial that failed is tried again and ends well. Without its draws
the sweep would then go on with other trials than those that have been run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from raysl.redact import redact_tree, redact_uri
from raysl.storage.folder import Folder, outlast
from raysl.sweeps.distributions import LISTS
from raysl.sweeps.space import Space
from raysl.sweeps.trial import ParentTrial, Trial

DRAWS_FOLDER = "draws"
DrawnFrom = Mapping[str, Sequence[float | None] | None]
"""Numbers of the trials that a draw looked at, by the trials' names; None of one that it left out, since it failed."""


class Draws:
    """The draws of a sweep by their place, a file each, without credentials.

    Args:
        folder: of the sweep.
        space: what varies, from which values with credentials are taken again.
        configs: names of what trials depart from.
        may_write: whether a draw is to be kept now; not where nothing is to be run.
    """

    def __init__(
        self, folder: Folder, space: Space, configs: Sequence[str], may_write: Callable[[], bool] = lambda: True
    ) -> None:
        self.folder = folder.child(DRAWS_FOLDER)
        self.space = space
        self.configs = {redact_uri(name): name for name in configs}
        self.may_write = may_write
        self._known: dict[int, Trial | None] = {}  # each place is read once, however often a search that waits asks

    def at(self, place: int) -> Trial | None:
        """The trial that was drawn at a place; None where none was, or where it cannot be read."""
        if place not in self._known:
            self._known[place] = self._read(place)
        return self._known[place]

    def keep(self, place: int, trial: Trial, drawn_from: DrawnFrom) -> None:
        """Write a draw, and what it was drawn from, before its trial starts."""
        self._known[place] = trial
        if not self.may_write():
            return
        tree = {
            "settings": redact_tree(dict(trial.settings)),
            "seed": trial.seed,
            "config": redact_uri(trial.config),
            "parents": [(parent.trial, parent.epoch) for parent in trial.parents],
        }
        text = json.dumps({"trial": tree, "drawn_from": dict(drawn_from)}, indent=1) + "\n"
        self.folder.make()
        outlast(partial(self.folder.write, _name(place), text.encode()))

    def _read(self, place: int) -> Trial | None:
        text = outlast(partial(self.folder.read_if_there, _name(place)))
        try:
            tree = json.loads(text)["trial"]
            settings = {key: self._value(key, value) for key, value in tree["settings"].items()}
            parents = tuple(ParentTrial(name, epoch) for name, epoch in tree["parents"])
            return Trial(settings, tree["seed"], self.configs[tree["config"]], parents)
        except (ValueError, KeyError, TypeError, StopIteration):
            return None

    def _value(self, key: str, stored: Any) -> Any:
        own = self.space.distributions[key]
        if own.kind not in LISTS:
            return stored
        return next(value for value in own.values if _plain(redact_tree(value)) == stored)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _name(place: int) -> str:
    return f"draw_{place:06d}.json"
