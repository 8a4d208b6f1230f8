"""Which checkpoints of a run are not deleted when newer ones come: `kept.json` in the run's folder."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from raysl.checkpoint_files import KEPT_FILE, META_FILE, checkpoint_name
from raysl.storage import Folder

LONGEST = 20  # ranks that are remembered, for the case that the first could not be stored or were deleted by hand


@dataclass(frozen=True)
class Kept:
    """What a run keeps.

    Args:
        rule: metric and mode that the ranks go by.
        best: names of checkpoints and their values, best first; those behind the first that is there are not kept.
        always: names that stay in any case.
    """

    rule: tuple[str | None, str | None] = (None, None)
    best: tuple[tuple[str, float], ...] = ()
    always: tuple[str, ...] = ()

    @classmethod
    def read(cls, run: Folder) -> "Kept":
        """What the run's folder says; nothing where it says nothing."""
        content = run.read_if_there(KEPT_FILE)
        if not content:
            return cls()
        found = json.loads(content)
        metric, mode = found["rule"]
        best = tuple((str(name), float(value)) for name, value in found["best"])
        return cls((metric, mode), best, tuple(found["always"]))

    def write(self, folder: Path) -> None:
        """Say so in a local folder."""
        draft = folder / f"{KEPT_FILE}.part"
        draft.write_text(json.dumps(asdict(self), indent=1))
        draft.rename(folder / KEPT_FILE)

    def until(self, step: int) -> "Kept":
        """What was said of checkpoints up to a step."""
        last = checkpoint_name(step)
        return replace(
            self,
            best=tuple((name, value) for name, value in self.best if name <= last),
            always=tuple(name for name in self.always if name <= last),
        )

    def ranked(self, name: str, value: float, mode: Literal["min", "max"]) -> "Kept":
        """With one more in its place, behind those that are as good."""
        sign = 1 if mode == "min" else -1
        best = sorted([*self.best, (name, value)], key=lambda rank: sign * rank[1])  # stable
        return replace(self, best=tuple(best[:LONGEST]))

    def with_always(self, name: str) -> "Kept":
        """With one more that stays in any case."""
        return replace(self, always=(*self.always, name))

    def best_in(self, run: Folder) -> str | None:
        """Name of the best one that is there."""
        return next((name for name, _ in self.best if run.exists(f"{name}/{META_FILE}")), None)
