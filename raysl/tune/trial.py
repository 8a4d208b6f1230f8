"""A trial: its choice of settings, the name and settings of its run, and the note of its end."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from raysl.benchmarks.suite.digests import code_of
from raysl.benchmarks.suite.fitting import benchmark_class
from raysl.benchmarks.suite.protocols import digest_of
from raysl.components import resolve
from raysl.config.dump import plain
from raysl.config.load import apply_overrides
from raysl.config.schema import RunConfig
from raysl.leaderboard.flat import shown
from raysl.redact import bare_tree, bare_uri, redact_tree, redact_uri
from raysl.report.report_json import plain as jsonable
from raysl.storage.folder import Folder, outlast
from raysl.storage.records import check_types, kinds_of, read_record

ALONE = ""
"""The name of the base configuration if there is only one."""
CONFIG, SEED = "config", "seed"
NOTE_FILE = "trial.json"
FORMAT = 1


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


@dataclass(frozen=True)
class Note:
    """The note that a trial leaves in its run's folder when it ends.

    Args:
        status: finished; stopped by the scheduler of a sweep; failed for good; or paused, of one that goes on.
        until: epoch that it was to train to.
        epoch: epoch of its newest checkpoint; of a trial that failed, of its last line, to which its metrics belong.
        metrics: newest number of each name, measured ones among them.
        intervals, units: intervals and units of measured numbers, by the same names.
        costs: seconds of all its starts, step_s, memory_gb, gpu_hours.
        measures: digests of settings and code of what was measured, by benchmark.
        checkpoint: URI of its newest one.
        started, ended: seconds since 1970, of the first start and of the last end.
    """

    status: Literal["finished", "stopped", "paused", "failed"]
    until: int
    epoch: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    measures: dict[str, list[str]] = field(default_factory=dict)
    checkpoint: str | None = None
    started: float = 0.0
    ended: float = 0.0

    @classmethod
    def read(cls, folder: Folder) -> "Note | None":
        """Read the note in a run's folder; None if there is none in this format."""
        try:
            text = outlast(partial(folder.read_if_there, NOTE_FILE))
            content = read_record(text, folder.uri_of(NOTE_FILE), {"format": int, "status": str, "until": int})
            if content.pop("format") != FORMAT:
                return None
            kinds = (
                kinds_of(cls)
                | dict.fromkeys(("metrics", "costs"), dict[str, float | None])
                | {"intervals": dict[str, list[float | None]]}
            )
            check_types(content, folder.uri_of(NOTE_FILE), optional=kinds)
            # JSON has no NaN: such numbers were written as null, and are left out
            content["metrics"] = {name: value for name, value in content["metrics"].items() if value is not None}
            content["intervals"] = {
                name: tuple(ends) for name, ends in content["intervals"].items() if None not in ends
            }
            return cls(**content)
        except (ValueError, KeyError, TypeError):
            return None

    def is_of_now(self, epochs: int, measures: Mapping[str, list[str]]) -> bool:
        """Whether it marks the end of a trial of `epochs`, with all that is measured now.

        Args:
            measures: digests that are asked for, see `measures_of`.
        """
        is_measured = all(self.measures.get(name) == digests for name, digests in measures.items())
        return self.status == "finished" and is_measured and self.until == epochs

    def write(self, folder: Folder) -> None:
        """Write it into a run's folder, replacing an earlier one."""
        content = {"format": FORMAT, **asdict(self)}
        content["checkpoint"] = None if self.checkpoint is None else redact_uri(self.checkpoint)
        outlast(partial(folder.write, NOTE_FILE, (json.dumps(jsonable(content), indent=1) + "\n").encode()))


def measures_of(config: RunConfig) -> dict[str, list[str]]:
    """Return digests of settings and code of a run's benchmarks, by name."""
    backbone = resolve("backbone", config.backbone.name)
    return {
        name: [digest_of(plain(settings)), code_of(benchmark_class(settings), backbone)]
        for name, settings in config.benchmarks.items()
    }
