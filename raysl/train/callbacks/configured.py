"""The callbacks that a run's settings name, made on the driver: a user's file need not be known to the workers."""

import inspect

from raysl.components import resolve
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.train.callbacks.callback import Callback


def configured(config: RunConfig) -> tuple[Callback, ...]:
    """Those of `callbacks`, in the order of the settings.

    Raises:
        ConfigError: if a class is no callback, is not made from its settings alone, or refuses them.
    """
    made = []
    for key, settings in config.callbacks.items():
        kind = resolve("callback", settings.name)
        if not issubclass(kind, Callback):
            raise ConfigError(f"callbacks.{key}: {kind.__name__} is no raysl.train.Callback; derive it from that class")
        try:
            inspect.signature(kind).bind(settings)
        except TypeError as error:
            raise ConfigError(
                f"callbacks.{key}: {kind.__name__}.__init__ takes other arguments than its settings ({error}); "
                "have it take config, and nest a frozen dataclass Config(CallbackConfig) in it"
            ) from error
        callback = kind(settings)
        callback.key = f"callbacks.{key}"
        made.append(callback)
    return tuple(made)
