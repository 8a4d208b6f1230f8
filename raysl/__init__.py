"""raysl: self-supervised pre-training and evaluation of image backbones on Ray."""

import importlib
import logging
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from raysl.process.forked import watch_forks
from raysl.redact import Redacted
from raysl.user_files import PREFIX

__version__ = "0.1.0"

logging.getLogger("raysl").addFilter(Redacted())  # in every process, workers included


class _SentFiles:
    """Imports the files of users that the driver of a run has sent to its cluster."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(PREFIX):
            return None
        from raysl.cluster.board import find_spec  # imports Ray

        return find_spec(name)


# Whatever a process of Ray unpickles, it imports raysl before it needs a module of a user's file.
sys.meta_path.append(_SentFiles)
watch_forks()

_HOME = {
    "load_config": "raysl.weights.initial",
    "pretrain": "raysl.pretraining",
    "load_backbone": "raysl.checkpoint.backbone",
    "load_history": "raysl.train.history",
    "list_runs": "raysl.leaderboard.run_list",
    "extract": "raysl.benchmarks.features.extract",
    "ingest": "raysl.data.ingest.on_ray",
    "benchmark": "raysl.benchmarks.suite.evaluate",
    "compare": "raysl.benchmarks.suite.several",
    "sweep": "raysl.sweeps.run",
    "views": "raysl.train.views",
    "convert": "raysl.weights.convert",
    "setup": "raysl.train.process",
    "Predictor": "raysl.predictor",
}
_MODULES = ("methods", "losses", "transforms", "nn", "tune")

__all__ = [*_HOME, *_MODULES]

if TYPE_CHECKING:
    from raysl.benchmarks.features.extract import extract as extract
    from raysl.benchmarks.suite.evaluate import benchmark as benchmark
    from raysl.benchmarks.suite.several import compare as compare
    from raysl.checkpoint.backbone import load_backbone as load_backbone
    from raysl.data.ingest.on_ray import ingest as ingest
    from raysl.leaderboard.run_list import list_runs as list_runs
    from raysl.predictor import Predictor as Predictor
    from raysl.pretraining import pretrain as pretrain
    from raysl.sweeps.run import sweep as sweep
    from raysl.train.history import load_history as load_history
    from raysl.train.process import setup as setup
    from raysl.train.views import views as views
    from raysl.weights.convert import convert as convert
    from raysl.weights.initial import load_config as load_config


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: `import raysl` loads neither torch nor Ray."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"raysl.{name}")
    raise AttributeError(f"module 'raysl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
