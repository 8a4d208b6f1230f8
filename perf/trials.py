"""The same training as a command, as turns of a plain loop, and as trials of a sweep."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from perf.commands import command_s
from perf.own_processes import started
from raysl.config.load import load_config
from raysl.storage.folder import Folder
from raysl.tune.note import Note


@dataclass(frozen=True)
class Work:
    """The training of each trial.

    Args:
        config: packaged name or file of a configuration.
        settings: on top of it.
    """

    config: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Swept:
    """Times at which the trials of a sweep began and ended.

    Args:
        seconds: from the command to its exit.
        start_s: from the command to the begin of the first trial.
        begins, ends: of the trials, seconds since 1970, by their ends.
    """

    seconds: float
    start_s: float
    begins: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def trial_s(self) -> float:
        """Seconds that one trial more takes: the median from the end of one to the end of the next, where they run
        one at a time."""
        return median(after - before for before, after in pairwise(self.ends))

    @property
    def an_hour(self) -> float:
        """Trials an hour, from the begin of the first one to the end of the last one."""
        return 3600 * len(self.ends) / (self.ends[-1] - min(self.begins))


def bare_s(work: Work, storage: Path, name: str) -> float:
    """Seconds of `raysl pretrain`, from the command to its exit.

    Raises:
        RunFailed: if it fails.
    """
    return command_s(["pretrain", work.config, *work.settings, f"storage={storage}", f"name={name}"])


def swept(work: Work, storage: Path, name: str, trials: int, concurrent: int) -> Swept:
    """Run `raysl sweep` with one seed per trial.

    Args:
        work: of each trial.
        storage: a local folder.
        name: of the sweep; its folder must not be there yet.
        trials: how many.
        concurrent: of them at a time.

    Raises:
        RunFailed: if it fails.
    """
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
    command = time.time()
    seconds = command_s(["sweep", str(file), *work.settings, f"storage={storage}", f"name={name}"])
    found = [Note.read(Folder(str(folder.parent))) for folder in (storage / name).glob("trial_*/trial.json")]
    notes = sorted((note for note in found if note is not None), key=lambda note: note.ended)
    begins, ends = tuple(note.started for note in notes), tuple(note.ended for note in notes)
    return Swept(seconds, min(begins) - command, begins, ends)


def looped_s(work: Work, storage: Path, name: str, trials: int) -> float:
    """Seconds of a turn of a loop that calls `raysl.pretrain` for each seed, on a cluster that stays up: the median,
    without the first one.

    Raises:
        RunFailed: if it fails.
    """
    task = {"config": work.config, "settings": work.settings, "storage": str(storage), "name": name, "trials": trials}
    return started("perf.trials", [json.dumps(task)], "the loop")["turn_s"]


def _loop(config: str, settings: Sequence[str], storage: str, name: str, trials: int) -> dict[str, float]:
    from raysl.pretraining import pretrain

    ends = []
    for seed in range(trials):
        words = [*settings, f"storage={storage}", f"name={name}-{seed}", f"seed={seed}"]
        pretrain(load_config(config, words), show_progress=False)
        ends.append(time.perf_counter())
    return {"turn_s": median(after - before for before, after in pairwise(ends))}


if __name__ == "__main__":
    print(json.dumps(_loop(**json.loads(sys.argv[1]))))
