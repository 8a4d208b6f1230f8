"""The settings about the cluster that this process follows. They are those of its command, which uses one cluster."""

from raysl.config.schema import ClusterConfig

_settings = ClusterConfig()


def use_settings(settings: ClusterConfig) -> None:
    """Follow these settings in this process, until others are given."""
    global _settings
    _settings = settings


def cluster_settings() -> ClusterConfig:
    """Return the settings that `use_settings` has set, or the defaults."""
    return _settings
