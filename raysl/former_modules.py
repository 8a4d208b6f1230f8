"""Former names of modules, so that imports written for earlier versions still work."""

import importlib
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "raysl.checkpoint_files": "raysl.checkpoint.files",
    "raysl.dist": "raysl.distributed",
    "raysl.losses.cosine": "raysl.losses.non_contrastive",
    "raysl.losses.redundancy": "raysl.losses.non_contrastive",
    "raysl.losses.spread": "raysl.losses.non_contrastive",
    "raysl.memory": "raysl.process.memory",
    "raysl.methods.self_distillation": "raysl.methods.patches",
    "raysl.methods.setup": "raysl.plan.setup",
    "raysl.nn.backbones.selective_kernels": "raysl.nn.backbones.blocks",
    "raysl.nn.centre": "raysl.nn.dino_head",
    "raysl.nn.masked_views": "raysl.nn.views",
    "raysl.nn.multi_crop": "raysl.nn.views",
    "raysl.nn.pixels": "raysl.nn.pooling",
    "raysl.nn.prototypes": "raysl.nn.heads",
    "raysl.nn.shuffle": "raysl.nn.batch_norm",
    "raysl.nn.stage_heads": "raysl.nn.classifiers",
    "raysl.nn.view_passes": "raysl.nn.views",
    "raysl.nn.whiten": "raysl.nn.moments",
    "raysl.resources": "raysl.cluster.resources",
    "raysl.sweeps.logged": "raysl.runs.logged",
    "raysl.train.callbacks.iteration_timer": "raysl.train.callbacks.numbers",
    "raysl.train.callbacks.learning_rates": "raysl.train.callbacks.numbers",
    "raysl.train.callbacks.memory_stats": "raysl.train.callbacks.numbers",
    "raysl.train.callbacks.online_knn": "raysl.benchmarks.online_knn",
    "raysl.train.callbacks.windows": "raysl.train.callbacks.numbers",
    "raysl.train.fork": "raysl.runs.fork",
    "raysl.train.plan": "raysl.plan.plan",
    "raysl.train.pretrain": "raysl.pretraining",
    "raysl.transforms.boxes": "raysl.transforms.erasing",
    "raysl.transforms.functional_lab": "raysl.transforms.functional_color",
    "raysl.transforms.permutations": "raysl.transforms.tiles",
    "raysl.transforms.rotation": "raysl.transforms.geometric",
}
"""The name of each moved module today, by its former name."""


class FormerModules(MetaPathFinder):
    """Finds moved modules; it is last in `sys.meta_path`, so it is asked for unknown names only."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the specification of a module that forwards to the moved one; None for any other name."""
        return ModuleSpec(name, _Forward(MOVED[name])) if name in MOVED else None


class _Forward(Loader):
    """Loads a module that forwards to another one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def exec_module(self, module: ModuleType) -> None:
        warnings.warn(f"{module.__name__} has moved to {self.name}; import it from there", FutureWarning, stacklevel=2)
        moved = importlib.import_module(self.name)
        module.__dict__["__getattr__"] = lambda name: getattr(moved, name)
