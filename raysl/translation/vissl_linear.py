"""VISSL's linear benchmark: classifiers on stages of a frozen trunk, as `method=supervised` with `method.heads`."""

from typing import Any

from raysl.config.dump import write_inline
from raysl.errors import ConfigError
from raysl.translation.translated import Translation
from raysl.translation.vissl_methods import HEAD
from raysl.translation.vissl_settings import checked, pair

EVAL = "MODEL.FEATURE_EVAL_SETTINGS"
POOLS = f"{EVAL}.LINEAR_EVAL_FEAT_POOL_OPS_MAP"
STAGES = {
    "conv1": "conv1",
    "res1": "stem",
    "res2": "res2",
    "res3": "res3",
    "res4": "res4",
    "res5": "res5",
    "res5avg": "avgpool",
    "flatten": "avgpool",
}
"""raysl's names for the stages of VISSL's ResNets."""


def translate_linear(out: Translation) -> None:
    """Translate the stages, their pools and classifiers, and freeze the trunk."""
    if not out.vissl.any(f"{EVAL}.FREEZE_TRUNK_ONLY"):
        out.drops(EVAL)
        if out.settings["method.name"] == "supervised":
            out.drops(HEAD)
        return
    out.maps(f"{EVAL}.FREEZE_TRUNK_ONLY", {"backbone.freeze": ["all"]})
    out.drops(f"{EVAL}.EVAL_MODE_ON {EVAL}.SHOULD_FLATTEN_FEATS {EVAL}.EXTRACT_TRUNK_FEATURES_ONLY")
    pools, heads = out.vissl.items(POOLS), out.vissl.items(HEAD)
    if not pools:
        out.maps(HEAD, {"method.classifier": "linear"})
        return
    if len(pools) != len(heads):
        raise ConfigError(f"{POOLS}: {len(pools)} stages, but {len(heads)} heads in {HEAD}; give one for each")
    names, classifiers = [], []
    for pool, head in zip(pools, heads, strict=True):
        stage, operation = str(pair(pool, POOLS)[0]), pair(pool, POOLS)[1]
        if stage not in STAGES:
            raise ConfigError(f"{POOLS}: no counterpart of the stage {stage!r}; known are {', '.join(STAGES)}")
        names.append(f"{stage} is {STAGES[stage]}")
        classifiers.append({"stage": STAGES[stage], **_pool(operation), "classifier": _kind(head)})
    out.maps(POOLS, {"method.heads": classifiers}, f"{', '.join(names)}; the features themselves have a classifier too")
    note = "batch normalisation of each pooled value by itself, of each channel in VISSL; widths follow from the pools"
    out.maps(HEAD, {}, note if any(head["classifier"] == "norm_linear" for head in classifiers) else "")
    out.settings["train.eval_every"] = "1ep"


def command_of(out: Translation) -> str:
    """Return the benchmark of raysl that comes nearest."""
    settings = out.settings
    options = {
        "epochs": settings["train.epochs"],
        "batch_size": settings["train.batch_size"],
        "lr": settings["optim.lr"],
        "weight_decay": settings["optim.weight_decay"],
        "decay_at": settings.get("optim.decay_at", []),
        "nesterov": settings.get("optim.nesterov", False),
        "decay_biases": not settings.get("optim.exclude_bias", settings.get("optim.exclude_norm_and_bias", True)),
        "batch_norm": any(head["classifier"] == "norm_linear" for head in settings.get("method.heads", [])),
        "interpolation": settings.get("method.views.interpolation", "bilinear"),
        "stages": [{key: head[key] for key in ("stage", "pool") if key in head} for head in settings["method.heads"]],
    }
    overrides = [f"linear_augmented.{key}={write_inline(value)}" for key, value in options.items()]
    return "raysl benchmark --checkpoint RUN linear_augmented " + " ".join(
        f"'{word}'" if any(mark in word for mark in "[{ ") else word for word in overrides
    )


def _kind(head: Any) -> str:
    name = str(head[0] if isinstance(head, list) and head else head)
    kinds = {"eval_mlp": "norm_linear", "mlp": "linear"}
    if name not in kinds:
        raise ConfigError(f"{HEAD}: no counterpart of the head {name!r}; known are {', '.join(kinds)}")
    return kinds[name]


def _pool(operation: Any) -> dict[str, Any]:
    """Translate ["AvgPool2d", [[kernel, kernel], stride, padding]] and ["Identity", []]."""
    name, listed = pair(operation, POOLS)
    arguments = checked(listed, (list,), POOLS, "a list of a pool's arguments")
    if name == "Identity":
        return {"pool": {"kind": "none"}}
    flat = [item for argument in arguments for item in (argument[:1] if isinstance(argument, list) else [argument])]
    if str(name) in ("AdaptiveAvgPool2d", "AdaptiveMaxPool2d") and flat:
        return {"pool": {"kind": "avg" if "Avg" in name else "max", "size": flat[0]}}
    if not flat or str(name) not in ("AvgPool2d", "MaxPool2d"):
        raise ConfigError(f"{POOLS}: no counterpart of the pool {name!r}; known are AvgPool2d, MaxPool2d, Identity")
    # a pool without a stride has that of its kernel, one without a padding has 0, as in torch
    kernel, stride, padding = [*flat, *(flat[0], 0)[len(flat) - 1 :]][:3]
    kind = "avg" if name == "AvgPool2d" else "max"
    return {"pool": {"kind": kind, "kernel": kernel, "stride": stride, "padding": padding}}
