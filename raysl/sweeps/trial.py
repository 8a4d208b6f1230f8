"""A trial of a sweep: its choice of settings, and the name and settings of its run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.leaderboard.flat import shown
from raysl.redact import bare_tree, bare_uri, redact_tree, redact_uri

ALONE = ""
"""The name of the base configuration if there is only one."""
CONFIG, SEED = "config", "seed"


@dataclass(frozen=True)
class ParentTrial:
    """The origin of a trial's weights.

    Args:
        epoch: whole epochs that it had trained.
    """

    trial: str
    epoch: int


@dataclass(frozen=True)
class Trial:
    """A choice of settings, and how far to train with it.

    Args:
        config: configuration that it departs from, by its name, or `ALONE`.
        parents: origins of the weights, the newest first; a new run has none.
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
        """Name of its run: a function of its settings, not of the order of drawing."""
        parent = self.parents[0] if self.parents else None
        return trial_name(
            self.settings, self.seed, self.config, None if parent is None else (parent.trial, parent.epoch)
        )

    def told(self) -> dict[str, Any]:
        """The settings that vary, with the configuration if there are several."""
        return {**({CONFIG: self.config} if self.config else {}), **self.settings}

    def words(self) -> str:
        """The settings that vary in one line, without credentials.

        >>> Trial({"optim.lr": 0.1}, seed=3).words()
        'optim.lr=0.1 seed=3'
        """
        config = [redact_uri(self.config)] if self.config else []
        varied = (f"{key}={shown(value)}" for key, value in redact_tree(dict(self.settings)).items())
        return " ".join([*config, *varied, f"seed={self.seed}"])

    def run_of(self, bases: Mapping[str, RunConfig], storage: str) -> RunConfig:
        """Return the settings of its run."""
        words = [setting(key, value) for key, value in self.settings.items()]
        config = apply_overrides(bases[self.config], words) if words else bases[self.config]
        return replace(config, storage=storage, name=self.name, seed=self.seed)


def trial_name(
    settings: Mapping[str, Any], seed: int = 0, config: str = ALONE, parent: tuple[str, int] | None = None
) -> str:
    """Return `trial_` and eight hexadecimal digits of a hash of the settings without credentials.

    Args:
        parent: run and epoch whose weights it goes on from.
    """
    whole = {"settings": bare_tree(dict(settings)), SEED: seed, CONFIG: bare_uri(config), "parent": parent}
    return "trial_" + hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:8]


def setting(key: str, value: Any) -> str:
    """Write a setting as on the command line."""
    return f"{key}={json.dumps(value)}"
