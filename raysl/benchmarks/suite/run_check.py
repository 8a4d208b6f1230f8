"""Checks of a run's benchmarks before it trains."""

from functools import partial

from raysl.benchmarks.benchmark import ConfigError, Needs
from raysl.benchmarks.online_knn import OnlineKNN, online_vote
from raysl.benchmarks.suite.fitting import MeasuredImages, group_left_out
from raysl.config.schema import RunConfig
from raysl.data.source import Split
from raysl.report.contents import online_knn
from raysl.train.prepare import Measurements


def check_benchmarks(config: RunConfig, train: Split, test: Split | None) -> Measurements:
    """Check the benchmarks of a run against its images."""
    images = MeasuredImages(config.data, train, test)
    fitting = images.fit(config.benchmarks)
    names, left_out = fitting.metrics(), list(fitting.left_out)
    if config.train.online_knn_every is None:
        return Measurements(names, group_left_out(left_out))
    try:
        if missing := images.lacks(Needs()):
            raise ConfigError(missing)
        vote = online_vote(config, images.labelled)
    except ConfigError as error:
        left_out.append(f"the online kNN is left out: {error}")
        return Measurements(names, group_left_out(left_out))
    online = [online_knn(k) for k in vote.k]
    return Measurements(names, group_left_out(left_out), online, partial(OnlineKNN, vote=vote))
