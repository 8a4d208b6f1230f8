"""Runs as trials of Ray Tune: `Tuner(raysl.tune.trainable(config), param_space=...)`."""

from raysl.tune.run_trainable import RunTrainable as RunTrainable
from raysl.tune.run_trainable import trainable as trainable
