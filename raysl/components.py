"""Names of components: a dict of aliases, and `resolve`, which turns a name into a class.

Classes do not register themselves: a Ray worker is a fresh process, where a decorator's registry would be empty.
"""

import difflib
import importlib
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from raysl.errors import ConfigError
from raysl.user_files import find_file, import_file

ALIASES: dict[str, dict[str, str]] = {
    "method": {
        "aim": "raysl.methods.aim:AIM",
        "all4one": "raysl.methods.all4one:All4One",
        "barlow_twins": "raysl.methods.barlow_twins:BarlowTwins",
        "byol": "raysl.methods.byol:BYOL",
        "capi": "raysl.methods.capi:CAPI",
        "clusterfit": "raysl.methods.clusterfit:ClusterFit",
        "co2": "raysl.methods.co2:CO2",
        "colorization": "raysl.methods.colorization:Colorization",
        "cmae": "raysl.methods.cmae:CMAE",
        "cross_mae": "raysl.methods.cross_mae:CrossMAE",
        "data2vec": "raysl.methods.data2vec:Data2Vec",
        "densecl": "raysl.methods.densecl:DenseCL",
        "dcl": "raysl.methods.dcl:DCL",
        "deepcluster": "raysl.methods.deepcluster:DeepCluster",
        "deepcluster_v2": "raysl.methods.deepcluster_v2:DeepClusterV2",
        "detcon": "raysl.methods.detcon:DetCon",
        "dino": "raysl.methods.dino:DINO",
        "dino_v2": "raysl.methods.dino_v2:DINOv2",
        "dino_v3": "raysl.methods.dino_v3:DINOv3",
        "directclr": "raysl.methods.directclr:DirectCLR",
        "distill": "raysl.methods.distill:Distill",
        "emp_ssl": "raysl.methods.emp_ssl:EMPSSL",
        "fastsiam": "raysl.methods.fastsiam:FastSiam",
        "franca": "raysl.methods.franca:Franca",
        "frossl": "raysl.methods.frossl:FroSSL",
        "ibot": "raysl.methods.ibot:IBOT",
        "igpt": "raysl.methods.igpt:IGPT",
        "ijepa": "raysl.methods.ijepa:IJEPA",
        "jigsaw": "raysl.methods.jigsaw:Jigsaw",
        "lejepa": "raysl.methods.lejepa:LeJEPA",
        "macl": "raysl.methods.macl:MACL",
        "mae": "raysl.methods.mae:MAE",
        "maskfeat": "raysl.methods.maskfeat:MaskFeat",
        "mim_refiner": "raysl.methods.mim_refiner:MIMRefiner",
        "mixmim": "raysl.methods.mixmim:MixMIM",
        "mmcr": "raysl.methods.mmcr:MMCR",
        "moco": "raysl.methods.moco:MoCo",
        "moco_v3": "raysl.methods.moco_v3:MoCoV3",
        "msn": "raysl.methods.msn:MSN",
        "nepa": "raysl.methods.nepa:NEPA",
        "nnbyol": "raysl.methods.nnbyol:NNBYOL",
        "nnclr": "raysl.methods.nnclr:NNCLR",
        "nnsiam": "raysl.methods.nnsiam:NNSiam",
        "npid": "raysl.methods.npid:NPID",
        "npid_plus": "raysl.methods.npid_plus:NPIDPlus",
        "paka": "raysl.methods.paka:PaKA",
        "pirl": "raysl.methods.pirl:PIRL",
        "pixio": "raysl.methods.pixio:Pixio",
        "pmsn": "raysl.methods.pmsn:PMSN",
        "ressl": "raysl.methods.ressl:ReSSL",
        "rotnet": "raysl.methods.rotnet:RotNet",
        "salt": "raysl.methods.salt:SALT",
        "simclr": "raysl.methods.simclr:SimCLR",
        "simmim": "raysl.methods.simmim:SimMIM",
        "simsiam": "raysl.methods.simsiam:SimSiam",
        "smog": "raysl.methods.smog:SMoG",
        "spark": "raysl.methods.spark:SparK",
        "ssl_ey": "raysl.methods.ssl_ey:SSLEY",
        "supcon": "raysl.methods.supcon:SupCon",
        "supervised": "raysl.methods.supervised:Supervised",
        "swav": "raysl.methods.swav:SwAV",
        "swav_momentum": "raysl.methods.swav_momentum:SwAVMomentum",
        "tico": "raysl.methods.tico:TiCo",
        "vibcreg": "raysl.methods.vibcreg:VIbCReg",
        "vicreg": "raysl.methods.vicreg:VICReg",
        "vicregl": "raysl.methods.vicregl:VICRegL",
        "visreg": "raysl.methods.visreg:VISReg",
        "wmse": "raysl.methods.wmse:WMSE",
    },
    "backbone": {
        "alexnet": "raysl.nn.backbones.alexnet:AlexNet",
        "regnet": "raysl.nn.backbones.regnet:RegNet",
        "resnet": "raysl.nn.backbones.resnet:ResNet",
        "swin": "raysl.nn.backbones.swin:Swin",
        "timm": "raysl.nn.backbones.timm_models:TimmModel",
        "torchvision": "raysl.nn.backbones.torchvision_models:TorchvisionModel",
        "vit": "raysl.nn.backbones.vit:ViT",
    },
    "source": {
        "catalog": "raysl.data.sources.catalog:Catalog",
        "coco": "raysl.data.sources.coco:COCO",
        "concat": "raysl.data.sources.concat:Concat",
        "digits": "raysl.data.sources.digits:Digits",
        "drawn": "raysl.data.sources.drawn:Drawn",
        "file_list": "raysl.data.sources.file_list:FileList",
        "hugging_face": "raysl.data.sources.hugging_face:HuggingFace",
        "image_folder": "raysl.data.sources.image_folder:ImageFolder",
        "paired": "raysl.data.sources.paired:Paired",
        "parquet": "raysl.data.sources.parquet:Parquet",
        "photos": "raysl.data.sources.photos:Photos",
        "synthetic": "raysl.data.sources.synthetic:Synthetic",
        "torchvision": "raysl.data.sources.torchvision_dataset:TorchvisionDataset",
        "voc": "raysl.data.sources.voc:VOC",
        "webdataset": "raysl.data.sources.webdataset:WebDataset",
    },
    "optimizer": {
        "adam": "raysl.optim.adam:Adam",
        "adamw": "raysl.optim.adam:AdamW",
        "lamb": "raysl.optim.lamb:LAMB",
        "larc": "raysl.optim.larc:LARC",
        "lars": "raysl.optim.lars:LARS",
        "sgd": "raysl.optim.sgd:SGD",
        "torch": "raysl.optim.any_torch:AnyTorch",
    },
    "benchmark": {
        "clustering": "raysl.benchmarks.clustering:Clustering",
        "copy_detection": "raysl.benchmarks.copy_detection:CopyDetection",
        "depth": "raysl.benchmarks.depth:Depth",
        "detection": "raysl.benchmarks.detection:Detection",
        "dse": "raysl.benchmarks.dse:DSE",
        "finetune": "raysl.benchmarks.finetune:Finetune",
        "geometry": "raysl.benchmarks.geometry:Geometry",
        "knn": "raysl.benchmarks.knn:KNN",
        "linear": "raysl.benchmarks.linear:Linear",
        "linear_augmented": "raysl.benchmarks.linear_augmented:LinearAugmented",
        "logistic": "raysl.benchmarks.logistic:Logistic",
        "low_shot": "raysl.benchmarks.low_shot:LowShot",
        "low_shot_svm": "raysl.benchmarks.low_shot_svm:LowShotSVM",
        "retrieval": "raysl.benchmarks.retrieval:Retrieval",
        "robustness": "raysl.benchmarks.robustness:Robustness",
        "segmentation": "raysl.benchmarks.segmentation:Segmentation",
        "semi_supervised": "raysl.benchmarks.semi_supervised:SemiSupervised",
        "svm": "raysl.benchmarks.svm:SVM",
        "video_segmentation": "raysl.benchmarks.video_segmentation:VideoSegmentation",
    },
    "callback": {
        "checkpoint_keeper": "raysl.train.callbacks.checkpoint_keeper:CheckpointKeeper",
        "early_stop": "raysl.train.callbacks.early_stop:EarlyStop",
        "embedding": "raysl.train.callbacks.embedding:Embedding",
        "function": "raysl.train.callbacks.function:Function",
        "histograms": "raysl.train.callbacks.histograms:Histograms",
        "mlflow": "raysl.train.callbacks.mlflow_log:MLflow",
        "non_finite_finder": "raysl.train.callbacks.non_finite_finder:NonFiniteFinder",
        "precise_bn": "raysl.train.callbacks.precise_bn:PreciseBN",
        "view_images": "raysl.train.callbacks.view_images:ViewImages",
        "wandb": "raysl.train.callbacks.wandb_log:WandB",
        "iteration_timer": "raysl.train.callbacks.numbers:IterationTimer",
        "learning_rates": "raysl.train.callbacks.numbers:LearningRates",
        "memory_stats": "raysl.train.callbacks.numbers:MemoryStats",
        "profiler": "raysl.train.callbacks.profiler:Profiler",
        "windows": "raysl.train.callbacks.numbers:Windows",
    },
}


@dataclass(frozen=True)
class Classes:
    """The classes that a run's settings name, resolved once: other processes may not have a user's files."""

    method: type[Any]
    backbone: type[Any]
    optimizer: type[Any]

    @classmethod
    def of(cls, config: Any) -> "Classes":
        """Resolve the names in a `RunConfig`.

        Raises:
            ConfigError: if a component does not exist.
        """
        return cls(
            resolve("method", config.method.name),
            resolve("backbone", config.backbone.name),
            resolve("optimizer", config.optim.name),
        )


@dataclass(frozen=True)
class _Limit:
    source: str
    trusted: frozenset[str]


_LIMIT: ContextVar[_Limit | None] = ContextVar("limit", default=None)


@contextmanager
def only_own_components(source: str, trusted: Collection[str] = ()) -> Iterator[None]:
    """Make `resolve` refuse components that are not raysl's while inside: for settings that others may have written.

    Args:
        source: the file with the settings, for the message.
        trusted: names of other components that may be imported.
    """
    token = _LIMIT.set(_Limit(source, frozenset(trusted)))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def resolve(slot: str, name: str) -> type[Any]:
    """Return the class behind a component's name.

    >>> resolve("backbone", "resnet").__name__
    'ResNet'

    Args:
        slot: `method`, `backbone`, `source`, `optimizer`, `benchmark` or `callback`.
        name: an alias of that slot, `package.module:Class`, or `path/to/file.py:Class`.

    Raises:
        ConfigError: if the alias, file, module or class does not exist (the message lists similar names), or the name
            may not be imported here, see `only_own_components`.
    """
    component: type[Any] = _resolve(slot, name, "class", "classes", lambda value: isinstance(value, type))
    return component


def resolve_function(name: str, what: str) -> Callable[..., Any]:
    """Return the function behind a name.

    Args:
        name: `package.module:function` or `path/to/file.py:function`.
        what: purpose of the function, for messages.
    """
    function: Callable[..., Any] = _resolve(what, name, "function", "functions", callable)
    return function


def _resolve(slot: str, name: str, kind: str, kinds: str, is_of_kind: Callable[[Any], bool]) -> Any:
    where, attribute, module = _import(slot, name)
    component = getattr(module, attribute, None)
    if not is_of_kind(component):
        listed = sorted(
            k for k, v in vars(module).items() if is_of_kind(v) and getattr(v, "__module__", None) == module.__name__
        )
        raise ConfigError(
            f"{slot} {name!r}: {where} has no {kind} {attribute!r}; its {kinds}: {', '.join(listed[:20]) or 'none'}"
        )
    return component


def _import(slot: str, name: str) -> tuple[str, str, ModuleType]:
    """Return the file or module of a component as written, the component's name in it, and the module."""
    aliases = ALIASES.get(slot, {})
    target = aliases.get(name, name)
    if ":" not in target:
        raise ConfigError(f"unknown {slot} {name!r}; {_hint(name, aliases)}")
    where, _, attribute = target.rpartition(":")
    # before the import, which runs the code of the module
    _check_allowed(slot, name, where)
    return where, attribute, _module_from_file(slot, where) if where.endswith(".py") else _module_by_name(slot, where)


def _hint(name: str, aliases: Collection[str]) -> str:
    """Say which name was probably meant, or else which there are, and how a component of a user is named."""
    if not aliases:
        return "give package.module:function or path/to/file.py:function"
    names = [nearest(part, aliases) for part in name.split(",")]
    if len(names) > 1 and all(names):
        hint = f"did you mean several? Write them as {' '.join(filter(None, names))}, in settings as a list [a, b];"
    else:
        hint = f"did you mean {names[-1]!r}?" if names[-1] else f"known: {', '.join(sorted(aliases))};"
    return f"{hint} or give package.module:Class or path/to/file.py:Class"


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that was probably meant; None if none is near.

    Capitals count for nothing, nor do `-`, `_`, spaces and dots.

    >>> nearest("kNN", ["knn", "linear"]), nearest("MoCo-v3", ["moco", "moco_v3"]), nearest("xyz", ["knn"])
    ('knn', 'moco_v3', None)
    """
    plain = {_plain(other): other for other in known}
    near = difflib.get_close_matches(_plain(name), plain, n=1)
    return plain[near[0]] if near else None


def _plain(name: str) -> str:
    return re.sub(r"[-_ .]", "", name.lower())


def _check_allowed(slot: str, name: str, where: str) -> None:
    limit = _LIMIT.get()
    if limit is None or name in limit.trusted or _is_own(where):
        return
    kind = "file" if where.endswith(".py") else "module"
    raise ConfigError(
        f"{slot} {name!r} is code that is not raysl's, of the {kind} {where}, and {limit.source} asks for it; nothing "
        "was imported. If you trust that code, say trust_code=True, on the command line --trust-code"
    )


def _is_own(where: str) -> bool:
    package, *inner = where.split(".")
    return package == "raysl" and not where.endswith(".py") and all(part.isidentifier() for part in inner)


def _module_by_name(slot: str, where: str) -> ModuleType:
    if not all(part.isidentifier() for part in where.split(".")):
        raise ConfigError(f"{slot}: {where!r} is not the name of a module; write package.module:Class")
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{slot}: cannot import {where!r} ({error}); is it installed, or on PYTHONPATH?") from error


def _module_from_file(slot: str, where: str) -> ModuleType:
    if (file := find_file(where)) is not None:
        return import_file(where, file)
    path = str(Path(where).expanduser().resolve())
    is_whole = Path(where).expanduser().is_absolute()
    place = "" if where == path else f"; it is looked for at {path}"
    other = "" if is_whole else ", or start in the folder that this path begins in"
    raise ConfigError(f"{slot}: no file {where!r}{place}; give the path of a file that is there{other}")
