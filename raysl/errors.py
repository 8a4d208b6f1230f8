"""The ways in which raysl gives up, and what a shell sees of them."""


class ConfigError(ValueError):
    """The user's input is wrong: the message names the value, the rule and the next step. Exit code 2."""


class StorageError(ConfigError):
    """A remote storage, or the network to it, fails; it may work again later."""


class RunInUse(ConfigError):
    """Another process is at work in the run's folder."""


class RunFailed(RuntimeError):
    """The input was right and the run failed all the same: the message says where and what is left. Exit code 1."""
