"""`python -m perf.samples`: GB that samples of ImageNet cost, counted in read units, now and at even distances.

The dataset is simulated: 1,281,167 training and 50,000 held-out images of 110 kB in row groups. A group is read whole,
once for all of its images that are wanted.
"""

import numpy as np
from typing_extensions import override

from raysl.benchmarks.online_knn import MOST_TEST, MOST_TRAIN
from raysl.benchmarks.report.assemble import MOST_POINTS, NUM_NEIGHBOURS, NUM_QUERIES, NUM_VIEWED
from raysl.data.sources.sample import even_index, sample_rows
from raysl.data.split import Rows, Split, runs
from raysl.hashing import Int64s, permutation

TRAIN, TEST, ROW_BYTES = 1_281_167, 50_000, 110_000
UNIT_ROWS = (64, 256)


class Sizes(Split):
    """Images of which only the read units are known."""

    fingerprint, classes, is_random_access = "sizes", (), False

    def __init__(self, num: int, unit_rows: int) -> None:
        self.unit_sizes = runs(num, unit_rows)

    @override
    def read(self, index: Int64s) -> Rows:
        raise NotImplementedError("these images exist as numbers only")

    def read_gb(self, rows: Int64s) -> float:
        """GB of the units of some rows."""
        units = np.unique(np.searchsorted(np.cumsum(self.unit_sizes), rows, side="right"))
        return float(self.unit_sizes[units].sum()) * ROW_BYTES / 1e9


def sample_table() -> str:
    """Return GB used, and read before and now, of each reader of a few images."""
    lines = [f"{'':<44}{'rows/unit':>10}{'used GB':>9}{'even GB':>9}{'now GB':>9}{'now/used':>9}"]
    for unit_rows in UNIT_ROWS:
        train, test = Sizes(TRAIN, unit_rows), Sizes(TEST, unit_rows)
        pairs = [(train, MOST_TRAIN), (test, MOST_TEST)]
        num = sum(most for _, most in pairs)
        even = sum(split.read_gb(even_index(split.num_samples, most)) for split, most in pairs)
        now = sum(split.read_gb(sample_rows(split, most)) for split, most in pairs)
        lines.append(_line("kNN during training, 5,000 and 1,000 images", unit_rows, num, even, now))
        even, now = (train.read_gb(rows) for rows in (even_index(TRAIN, 10_000), sample_rows(train, 10_000)))
        lines.append(_line("precise_bn, 10,000 images", unit_rows, 10_000, even, now))
        even, now = (train.read_gb(rows) for rows in (even_index(TRAIN, 1000), sample_rows(train, 1000)))
        lines.append(_line("views of geometry, 1,000 images", unit_rows, 1000, even, now))
        num_shown = MOST_POINTS + NUM_QUERIES * (1 + NUM_NEIGHBOURS)
        shown = test.read_gb(permutation(TEST, 0)[:num_shown])
        viewed = train.read_gb(permutation(TRAIN, 2)[:NUM_VIEWED])
        now = train.read_gb(sample_rows(train, NUM_VIEWED))  # the others are kept while features are computed
        lines.append(_line("pictures of a report", unit_rows, num_shown + NUM_VIEWED, shown + viewed, now))
        limit = TRAIN // 100
        even, now = (train.read_gb(rows) for rows in (even_index(TRAIN, limit), sample_rows(train, limit)))
        lines.append(_line("data.limit of 1 %, an epoch", unit_rows, limit, even, now))
    return "\n".join(lines)


def _line(title: str, unit_rows: int, num: int, even: float, now: float) -> str:
    used = num * ROW_BYTES / 1e9
    return f"{title:<44}{unit_rows:>10}{used:>9.2f}{even:>9.1f}{now:>9.2f}{now / used:>9.2f}"


if __name__ == "__main__":
    print(sample_table())
