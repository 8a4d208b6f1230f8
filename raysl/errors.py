"""The ways in which raysl gives up, and what a shell sees of them. Their messages hold no credentials."""

from raysl.redact import redact


class ConfigError(ValueError):
    """The user's input is wrong: the message names the value, the rule and the next step. Exit code 2."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redact(message))


class RunInUse(ConfigError):
    """Another process is at work in the run's folder."""


class StorageError(ConfigError):
    """A remote storage, or the network to it, fails; it may work again later."""


class RunFailed(RuntimeError):
    """The input was right and the run failed all the same: the message says where and what is left. Exit code 1."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redact(message))


class Stopped(RunFailed, SystemExit):
    """The run was asked to stop, by Ctrl-C or a signal; what it has trained is saved.

    A script that does not catch it ends without a traceback.

    Attributes:
        code: 128 and the number of the signal, exit code of the command: 130 for Ctrl-C, 143 for SIGTERM.
    """

    code: int

    def __init__(self, message: str = "", code: int = 130) -> None:
        super().__init__(message)
        self.code = code
