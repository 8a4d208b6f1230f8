"""A trial: its choice of settings, and the name and settings of its run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.leaderboard.flat import shown
from raysl.redact import bare_tree, bare_uri, redact_tree, redact_uri

ALONE = ""
"""The name of the base configuration if there is only one."""
CONFIG, SEED = "config", "seed"


@dataclass(frozen=True)
class Trial:
    """A choice of settings.

    Args:
        config: configuration that it departs from, by its name, or `ALONE`.
        parent: run and step whose weights it goes on from; None for a new run.
    """

    settings: Mapping[str, Any]
    seed: int
    config: str = ALONE
    parent: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        """Name of its run: `trial_` and eight hexadecimal digits of a hash of the settings without credentials."""
        settings = bare_tree(dict(self.settings))
        whole = {"settings": settings, SEED: self.seed, CONFIG: bare_uri(self.config), "parent": self.parent}
        return "trial_" + hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:8]

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
        overrides = [setting(key, value) for key, value in self.settings.items()]
        config = apply_overrides(bases[self.config], overrides) if overrides else bases[self.config]
        return replace(config, storage=storage, name=self.name, seed=self.seed)


def trial_of(settings: Mapping[str, Any], seed: int, config: str = ALONE) -> Trial:
    """Return the trial of settings, which may contain a seed."""
    varied = {key: value for key, value in settings.items() if key != SEED}
    return Trial(varied, int(settings.get(SEED, seed)), config)


def setting(key: str, value: Any) -> str:
    """Write a setting as on the command line."""
    return f"{key}={json.dumps(value)}"
