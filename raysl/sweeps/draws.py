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
from raysl.storage.records import check_types, read_record
from raysl.sweeps.distributions import LISTS
from raysl.sweeps.space import Space
from raysl.sweeps.trial import ParentTrial, Trial

DRAWS_FOLDER = "draws"
DrawnFrom = Mapping[str, Sequence[float | None] | None]
"""Numbers of the trials that a draw looked at, by the trials' names; None of one that it left out, since it failed."""


class Draws:
    """The draws of a sweep by their place, a file each, without credentials.

    Args:
        space: varied settings; values with credentials are read from it again.
        may_write: whether draws are written; not in a dry run.
    """

    def __init__(
        self, folder: Folder, space: Space, configs: Sequence[str], may_write: Callable[[], bool] = lambda: True
    ) -> None:
        self.folder = folder.child(DRAWS_FOLDER)
        self.space = space
        self.configs = {redact_uri(name): name for name in configs}
        self.may_write = may_write
        self._known: dict[int, Trial | None] = {}  # each draw is read once, though a waiting search asks often

    def at(self, index: int) -> Trial | None:
        """Return the trial of a draw; None if it was not drawn or cannot be read."""
        if index not in self._known:
            self._known[index] = self._read(index)
        return self._known[index]

    def keep(self, index: int, trial: Trial, drawn_from: DrawnFrom) -> None:
        """Write a draw, and the numbers that it was drawn from, before its trial starts."""
        if not self.may_write():
            self._known[index] = trial
            return
        tree = {
            "settings": redact_tree(dict(trial.settings)),
            "seed": trial.seed,
            "config": redact_uri(trial.config),
            "parents": [(parent.trial, parent.epoch) for parent in trial.parents],
        }
        text = json.dumps({"trial": tree, "drawn_from": dict(drawn_from)}, indent=1) + "\n"
        self.folder.make()
        outlast(partial(self.folder.write, _file_name(index), text.encode()))
        self._known[index] = trial

    def _read(self, index: int) -> Trial | None:
        text = outlast(partial(self.folder.read_if_there, _file_name(index)))
        try:
            kinds = {"settings": dict, "seed": Any, "config": str, "parents": list[tuple[str, float]]}
            tree = read_record(text, _file_name(index), {"trial": dict})["trial"]
            check_types(tree, _file_name(index), kinds)
            settings = {key: self._value(key, value) for key, value in tree["settings"].items()}
            parents = tuple(ParentTrial(name, epoch) for name, epoch in tree["parents"])
            return Trial(settings, tree["seed"], self.configs[tree["config"]], parents)
        except (ValueError, KeyError, TypeError, StopIteration):
            return None

    def _value(self, key: str, stored: Any) -> Any:
        distribution = self.space.distributions[key]
        if distribution.kind not in LISTS:
            return stored
        return next(value for value in distribution.values if _plain(redact_tree(value)) == stored)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _file_name(index: int) -> str:
    return f"draw_{index:06d}.json"
