"""`python -m tests.chaos.table [FOLDER]`: write `docs/faults.md` from the rows that the tests have left in a folder."""

import json
import sys
from pathlib import Path

from tests.chaos.harness import Row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"
KEPT = Path(__file__).parent / "rows"
PARTS = {
    "test_processes.py": "Processes",
    "test_data.py": "Data",
    "test_memory.py": "Memory",
    "test_nodes.py": "Nodes",
    "test_jobs.py": "Jobs",
    "test_checkpoints.py": "Checkpoints",
    "test_buckets.py": "Buckets",
    "test_disks.py": "Disks",
    "test_commands.py": "Other commands",
}
"""Headings, by the file of the tests."""

HEAD = """# Faults: what happens when something breaks

Each row is one real fault, injected by a test into a run of 40 small steps. A checkpoint is saved every 5 steps, and
the fault happens at step 17 unless the row says otherwise. If the driver ended, the same command was given again at
once. W is the number of workers. Seconds are rough: they were taken on two CPU cores shared with other work. Most of
them are spent on starting processes; there, an undisturbed start needed 30 to 60 s to its first step.

- **What you see**: all that raysl printed because of it, without the lines that every run prints.
- **Seconds**: time to the end of the next step; for refusals and commands that do not train, to the end of the command.
- **Again**: steps that were done twice.
- **Same bits**: whether `backbone.safetensors` and all logged losses equal those of an undisturbed run with the same
  number of workers and threads.
- **Left behind**: processes, temporary folders of raysl, half written files (`.part`), a held lock and, on a cluster,
  placement groups, after the end.

## What is tried again

| failure | what follows |
|---|---|
| a lost worker, data task, node or controller; a worker that hangs | a retry from the last checkpoint |
| storage, network and other errors of the system (`OSError`); memory; CUDA, NCCL and gloo | a retry |
| an exception of another library's own class, of which one try cannot tell | a retry |
| any other exception, by code of yours, raysl or torch: `KeyError`, shapes that do not fit | the run ends at once |
| a file that your code opens and that is not there or may not be read | the run ends at once |
| a missing or damaged file of images, a wrong setting, a loss that is not finite | the run ends at once |

An exception that caused another one counts too: a `ValueError` caused by an `OSError` is tried again. At most
`train.max_failures` retries may follow each other without a newly saved step. An exception in code is reported with its
file and line, `vicreg.py, line 47, in training_step: KeyError: 1`, and its traceback is in `ray.log` in the folder of
the run. Once the file is mended, the same command continues the run. A failed trial of a sweep follows the same rule.
"""
COLUMNS = "| fault | what you see | seconds | again | same bits | left behind |\n|---|---|---|---|---|---|"


def main(folder: Path = KEPT) -> None:
    """Write the page."""
    PAGE.write_text(page(read_rows(folder)))
    print(PAGE)


def read_rows(folder: Path) -> list[Row]:
    """Rows in the order of the tests."""
    rows = [Row(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(rows, key=lambda row: (list(PARTS).index(row.file), row.line, row.fault))


def page(rows: list[Row]) -> str:
    """The page, with a table for each part."""
    text = HEAD
    for file, heading in PARTS.items():
        lines = [_line(row) for row in rows if row.file == file]
        if lines:
            text += "\n".join([f"\n## {heading}\n", COLUMNS, *lines]) + "\n"
    return text


def _line(row: Row) -> str:
    sees = "<br>".join(f"`{line.replace('|', '/').replace('`', '´')}`" for line in row.sees) or "nothing"
    same = {True: "yes", False: "no", None: ""}[row.same_bits]
    seconds = "" if row.seconds is None else f"{row.seconds:.0f}"
    again = "" if row.again is None else str(row.again)
    return f"| {row.fault} | {sees} | {seconds} | {again} | {same} | {', '.join(row.left) or 'nothing'} |"


if __name__ == "__main__":
    main(*(Path(word) for word in sys.argv[1:2]))
