"""Credentials of a sweep's driver, which Ray Tune would hand to its trials."""

from raysl.redact import HIDDEN, redact_variables


def keep_credentials_out() -> None:
    """Have Ray Tune hand no credentials to the processes of trials, since Ray writes what it hands over into its logs.

    Those processes have the credentials of their node, as training workers have.
    """
    try:
        from ray.tune.execution.class_cache import ENV_VARS_TO_PROPAGATE as names
    except ImportError:  # another version of Ray, which hands nothing over
        return
    shown = redact_variables(dict.fromkeys(names, "value"))
    names.difference_update(name for name, value in shown.items() if value == HIDDEN)
