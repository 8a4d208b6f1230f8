"""Training without Ray: the loop, its state, callbacks and reporters."""

from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.late import NonFiniteLoss
from raysl.train.loop import fit
from raysl.train.reporter import LocalReporter, Reporter
from raysl.train.state import TrainState

__all__ = ["Callback", "LocalReporter", "NonFiniteLoss", "Reporter", "Run", "Setup", "TrainPlan", "TrainState", "fit"]
