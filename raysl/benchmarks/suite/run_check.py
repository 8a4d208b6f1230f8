"""Checks of a run's benchmarks before it trains."""

from raysl.benchmarks.benchmark import Needs
from raysl.benchmarks.online_knn import OnlineKNN
from raysl.benchmarks.suite.fitting import MeasuredImages, group_left_out
from raysl.config.schema import RunConfig
from raysl.data.source import Split
from raysl.runs.prepare import Measurements


def check_benchmarks(config: RunConfig, train: Split, test: Split | None) -> Measurements:
    """Check the benchmarks of a run against its images.

    Args:
        config: the run's settings.
        train: its training images.
        test: its held-out images, or None.

    Raises:
        ConfigError: if a required benchmark cannot be measured on these images, or its settings do not fit them.
    """
    images = MeasuredImages(config.data, train, test)
    fitting, missing = images.fit(config.benchmarks), images.lacks(Needs())
    left_out = list(fitting.left_out)
    if config.train.online_knn_every is not None and missing:
        left_out.append(f"the online kNN is left out: {missing}")
    return Measurements(fitting.metrics(), group_left_out(left_out), None if missing else OnlineKNN)
