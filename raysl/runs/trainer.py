"""Ray Train's trainer, less its own idea of Ctrl-C."""

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train.torch import TorchTrainer

ABORT_S = 10.0


class Trainer(TorchTrainer):
    """A TorchTrainer that leaves the signals alone: what it would do at Ctrl-C ends the run without a checkpoint."""

    controller: Any = None

    def _register_sigint_handler(self, controller: Any) -> None:
        """In place of Ray's: know the controller, which `abort` ends. In another thread Ray does not call this."""
        self.controller = controller

    def abort(self) -> None:
        """End the workers and give back their places; for when an exception has come out of `fit`."""
        if self.controller is None:
            return
        try:
            ray.get(self.controller.abort.remote(), timeout=ABORT_S)
        except RayActorError:
            return  # it has ended itself, as it should
        except GetTimeoutError:
            ray.kill(self.controller)
