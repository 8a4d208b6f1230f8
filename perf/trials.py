"""The same training as a command, as turns of a plain loop, and as trials of a sweep."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from perf.harness import child_numbers, command_s
from raysl.config.load import load_config
from raysl.storage.folder import Folder
from raysl.tune.note import Note


@dataclass(frozen=True)
class Work:
    """The training of each trial: name or file of a configuration, and settings on top of it."""

    config: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Swept:
    """Times at which the trials of a sweep began and ended."""

    seconds: float  # from the command to its exit
    begins: tuple[float, ...]  # of the trials, seconds since 1970, by their ends
    ends: tuple[float, ...]

    @property
    def trial_s(self) -> float:
        """Seconds that one trial more takes: the median from an end to the next, where they run one at a time."""
        return median_step(self.ends)

    @property
    def an_hour(self) -> float:
        """Trials an hour, from the begin of the first one to the end of the last one."""
        return 3600 * len(self.ends) / (self.ends[-1] - min(self.begins))


def median_step(moments: Sequence[float]) -> float:
    """Return the median time from one moment to the next."""
    return median(after - before for before, after in pairwise(moments))


def bare_s(work: Work, storage: Path, name: str) -> float:
    """Return the seconds of `raysl pretrain`, from the command to its exit."""
    return command_s(["pretrain", work.config, *work.settings, f"storage={storage}", f"name={name}"])


def swept(work: Work, storage: Path, name: str, trials: int, concurrent: int) -> Swept:
    """Run `raysl sweep` with one seed per trial, into a folder that must not exist yet."""
    settings = {
        "config": work.config,
        "scheduler": "none",
        "metric": "loss",
        "mode": "min",
        "concurrent": concurrent,
        "space": {"seed": {"grid": list(range(trials))}},
    }
    file = storage / f"{name}.yaml"
    file.write_text(json.dumps(settings))
    seconds = command_s(["sweep", str(file), *work.settings, f"storage={storage}", f"name={name}"])
    notes = [Note.read(Folder(str(file.parent))) for file in (storage / name).glob("trial_*/trial.json")]
    trial_times = sorted((note.ended, note.started) for note in notes if note is not None)
    ends, begins = zip(*trial_times, strict=True)
    return Swept(seconds, begins, ends)


def looped_s(work: Work, storage: Path, name: str, trials: int) -> float:
    """Return the median seconds of a turn of a loop that calls `raysl.pretrain` for each seed, without the first one.

    The cluster stays up.
    """
    task = asdict(work) | {"storage": str(storage), "name": name, "trials": trials}
    return float(child_numbers(loop, task, "the loop")["turn_s"])


def loop(config: str, settings: Sequence[str], storage: str, name: str, trials: int) -> dict[str, float]:
    """Call `raysl.pretrain` for each seed in this process."""
    from raysl.pretraining import pretrain

    ends = []
    for seed in range(trials):
        overrides = [*settings, f"storage={storage}", f"name={name}-{seed}", f"seed={seed}"]
        pretrain(load_config(config, overrides), show_progress=False)
        ends.append(time.perf_counter())
    return {"turn_s": median_step(ends)}
