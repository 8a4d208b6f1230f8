"""One trial of a sweep: what it tries, what its run is called, and with what settings that runs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.redact import bare_tree, bare_uri

ALONE = ""
"""The name of what all trials depart from, where that is one configuration."""
CONFIG, SEED = "config", "seed"


@dataclass(frozen=True)
class ParentTrial:
    """What a trial takes its weights from.

    Args:
        trial: name of that trial's run.
        epoch: whole epochs that it had trained.
    """

    trial: str
    epoch: int


@dataclass(frozen=True)
class Trial:
    """A choice of settings, and how far to train with it.

    Args:
        settings: what varies, by dotted key.
        seed: of the run.
        config: configuration that it departs from, by its name, or `ALONE`.
        parents: whose weights it goes on from, and whose those went on from, the newest first; a new run has none.
        until: epoch that it trains to; None: to the end, with what is measured then.
        is_repeat: whether it is a further seed of settings that the scheduler let come to their end, and not judged.
    """

    settings: Mapping[str, Any]
    seed: int
    config: str = ALONE
    parents: tuple[ParentTrial, ...] = ()
    until: int | None = field(default=None, compare=False)
    is_repeat: bool = field(default=False, compare=False)

    @property
    def name(self) -> str:
        """Name of its run: the same for the same settings, whatever the order of drawing."""
        parent = self.parents[0] if self.parents else None
        return trial_name(
            self.settings, self.seed, self.config, None if parent is None else (parent.trial, parent.epoch)
        )

    def told(self) -> dict[str, Any]:
        """What varies, with the configuration where there are several."""
        return {**({CONFIG: self.config} if self.config else {}), **self.settings}

    def run_of(self, bases: Mapping[str, RunConfig], storage: str) -> RunConfig:
        """The settings of its run."""
        words = [setting(key, value) for key, value in self.settings.items()]
        config = apply_overrides(bases[self.config], words) if words else bases[self.config]
        return replace(config, storage=storage, name=self.name, seed=self.seed)


def trial_name(
    settings: Mapping[str, Any], seed: int = 0, config: str = ALONE, parent: tuple[str, int] | None = None
) -> str:
    """`trial_` and eight hexadecimal digits of what makes a trial; credentials do not count.

    Args:
        settings: what varies.
        seed: of the run.
        config: configuration that it departs from.
        parent: run and epoch whose weights it goes on from.
    """
    whole = {"settings": bare_tree(dict(settings)), SEED: seed, CONFIG: bare_uri(config), "parent": parent}
    return "trial_" + hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:8]


def setting(key: str, value: Any) -> str:
    """A setting as it is written on the command line."""
    return f"{key}={json.dumps(value)}"
