"""VISSL's LOSS and HEAD as a method of raysl."""

from collections.abc import Callable
from typing import Any

from raysl.errors import ConfigError
from raysl.translation.translated import Translation
from raysl.translation.vissl_settings import checked, pair

HEAD = "MODEL.HEAD.PARAMS"
FROZEN = "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP"


def translate_method(out: Translation, batch_size: int) -> None:
    """Translate the loss with its settings, and the head."""
    name = out.vissl.text("LOSS.name")
    if name not in METHODS:
        known = ", ".join(METHODS)
        raise ConfigError(f"LOSS.name: {name!r} is none of {known}; take raysl's own recipe: raysl list configs")
    METHODS[name](out, f"LOSS.{name}", batch_size)
    for other in out.vissl.group("LOSS"):
        if other not in ("name", name):
            out.drops(f"LOSS.{other}")
    out.drops("buffer_params embedding_dim num_crops output_dim", below=f"LOSS.{name}.")


def _of(out: Translation, loss: str, **fields: str) -> None:
    """Translate numbers of a loss: `temperature="temperature"` is the key in VISSL and the field of the method."""
    for key, field in fields.items():
        out.maps(f"{loss}.{key}", {f"method.{field}": out.vissl.any(f"{loss}.{key}")})


def _layers(out: Translation) -> tuple[list[int], dict[str, Any]]:
    """Return the widths of the layers of an MLP head or of a chain of them, and the last settings of each kind."""
    widths: list[int] = []
    flags: dict[str, Any] = {}
    for entry in out.vissl.items(HEAD):
        name, node = pair(entry, HEAD)
        checked(name, (str,), HEAD, "the name of a head")
        checked(node, (dict,), HEAD, "a group of settings")
        dims = [checked(dim, (int,), HEAD, "a width") for dim in _list(node.get("dims", []))]
        # the first width of a head repeats the last one of the head before it
        widths += dims if not widths else dims[1:]
        flags |= {key: value for key, value in node.items() if key not in flags or value}
    return widths, flags


def _lost_activation(out: Translation) -> str:
    """Say where VISSL leaves out the ReLU that a file asks for: behind the last layer of an `mlp`."""
    _layers(out)  # checks the pairs
    chain = [entry[1] for entry in out.vissl.items(HEAD)[:-1] if entry[0] == "mlp"]
    lost = [node for node in chain if node.get("use_relu") and node.get("skip_last_layer_relu_bn", True)]
    reason = "without skip_last_layer_relu_bn: False, VISSL's mlp leaves out this ReLU, which raysl has"
    return reason if lost else ""


def _list(value: Any) -> list[Any]:
    return list(checked(value, (list,), HEAD, "a list of numbers"))


def _projector(out: Translation, more: dict[str, Any] | None = None) -> None:
    """Translate a head of one hidden layer, with more settings of the method."""
    widths, flags = _layers(out)
    settings = {"method.projector_norm": bool(flags.get("use_bn", False)), **(more or {})}
    if len(widths) != 3:
        out.lacks(HEAD, f"a head of {max(0, len(widths) - 1)} layers; raysl's has a hidden one and the last")
        out.settings |= settings
        return
    settings |= {"method.hidden_dim": widths[1], "method.output_dim": widths[2]}
    out.maps(HEAD, settings, _lost_activation(out))


def _simclr(out: Translation, loss: str, batch_size: int) -> None:
    out.maps("LOSS.name", {"method.name": "simclr"})
    _of(out, loss, temperature="temperature")
    _projector(out, {"method.output_norm": "none"})


def _moco(out: Translation, loss: str, batch_size: int) -> None:
    is_sync = out.vissl.flag("MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN")
    out.maps("LOSS.name", {"method.name": "moco", "method.key_bn": "sync" if is_sync else "shuffle"})
    _of(out, loss, queue_size="queue_size", momentum="momentum", temperature="temperature")
    widths, _ = _layers(out)
    settings = {"method.hidden_dims": widths[1:-1], "method.output_dim": widths[-1] if widths else 128}
    out.maps(HEAD, settings, _lost_activation(out))


def _swav(out: Translation, loss: str, batch_size: int) -> None:
    vissl = out.vissl
    name = loss.removeprefix("LOSS.").removesuffix("_loss")
    out.maps("LOSS.name", {"method.name": name, "method.queue_start": "random"})
    _of_one_swav(out, loss, name)
    _of(out, loss, temperature="temperature", num_iters="sinkhorn_iters", epsilon="epsilon")
    length = vissl.whole(f"{loss}.queue.queue_length")
    whole = length - length % batch_size
    note = f"cut to a multiple of the batch of {batch_size}, as VISSL does" if whole != length else ""
    out.maps(f"{loss}.queue.queue_length", {"method.queue_length": whole}, note)
    out.maps(f"{loss}.queue.start_iter", {"method.queue_from": f"{vissl.whole(f'{loss}.queue.start_iter')}st"})
    out.drops("queue.local_queue_length num_prototypes output_dir", below=f"{loss}.")
    for key, usual in (("use_double_precision", False), ("normalize_last_layer", True)):
        if vissl.any(f"{loss}.{key}") == usual:
            out.drops(f"{loss}.{key}")
    if vissl.any(f"{loss}.crops_for_assign") == [0, 1]:
        out.drops(f"{loss}.crops_for_assign")
    _prototypes(out)


def _of_one_swav(out: Translation, loss: str, name: str) -> None:
    """Translate what one loss of SwAV reads, and say that the other's settings, which a file may have, set nothing."""
    hard, momentum, eval_from = "temp_hard_assignment_iters", "momentum", "momentum_eval_mode_iter_start"
    if name == "swav":
        out.maps(f"{loss}.{hard}", {"method.hard_until": f"{out.vissl.whole(f'{loss}.{hard}')}st"})
        out.drops(f"{loss}.{momentum} {loss}.{eval_from}")
    else:
        out.maps(f"{loss}.{momentum}", {"method.momentum": out.vissl.number(f"{loss}.{momentum}")})
        out.maps(f"{loss}.{eval_from}", {"method.eval_from": f"{out.vissl.whole(f'{loss}.{eval_from}')}st"})
        out.drops(f"{loss}.{hard}")


def _prototypes(out: Translation) -> None:
    flags = _layers(out)[1]
    numbers = [checked(number, (int,), HEAD, "a number") for number in _list(flags.get("num_clusters", [3000]))]
    _projector(out, {"method.prototypes": numbers})
    _frozen(out, "method.freeze_prototypes")


def _frozen(out: Translation, setting: str) -> None:
    """Translate how long prototypes are frozen."""
    frozen = [entry for entry in out.vissl.items(FROZEN) if isinstance(entry, list) and len(entry) == 2]
    if len(frozen) == len(out.vissl.items(FROZEN)) and all("prototypes" in str(name) for name, _ in frozen):
        lengths = {checked(length, (int,), FROZEN, "a number of updates") for _, length in frozen} or {0}
        out.maps(FROZEN, {setting: f"{max(lengths)}st"})
    else:
        out.lacks(FROZEN, "raysl freezes prototypes for a while, and stages of the backbone all along")


def _barlow_twins(out: Translation, loss: str, batch_size: int) -> None:
    out.maps("LOSS.name", {"method.name": "barlow_twins", "method.normalize": "joint", "method.batch_norm": "joint"})
    _of(out, loss, lambda_="redundancy", scale_loss="scale")
    widths, _ = _layers(out)
    note = "" if len(set(widths[1:])) == 1 and len(widths) == 4 else "raysl has three layers of one width"
    notes = [part for part in (note, _lost_activation(out)) if part]
    out.maps(HEAD, {"method.dim": widths[-1] if widths else 8192}, "; ".join(notes))


def _dino(out: Translation, loss: str, batch_size: int) -> None:
    out.maps("LOSS.name", {"method.name": "dino"})
    _of(out, loss, momentum="momentum", student_temp="temperature", ema_center="centre_momentum")
    _of(out, loss, teacher_temp_min="teacher_temp_start", teacher_temp_max="teacher_temp")
    warmup = out.vissl.whole(f"{loss}.teacher_temp_warmup_iters")
    out.maps(f"{loss}.teacher_temp_warmup_iters", {"method.teacher_temp_warmup": f"{warmup}st"})
    if out.vissl.any(f"{loss}.crops_for_teacher") == [0, 1]:
        out.drops(f"{loss}.crops_for_teacher")
    out.drops(f"{loss}.normalize_last_layer")
    flags = _layers(out)[1]
    numbers = [checked(number, (int,), HEAD, "a number") for number in _list(flags.get("num_clusters", [65536]))]
    settings = {
        "method.head.num_prototypes": numbers[0] if numbers else 65536,
        "method.head.norm": bool(flags.get("use_bn", False)),
        "method.head.last_layer": "unit" if flags.get("normalize_last_layer", True) else "weight_norm",
    }
    widths = [key for key in ("num_layers", "hidden_dim", "bottleneck_dim") if key in flags]
    out.maps(HEAD, {**settings, **{f"method.head.{key}": flags[key] for key in widths}})
    _frozen(out, "method.freeze_last_layer")


def _deepcluster(out: Translation, loss: str, batch_size: int) -> None:
    out.maps("LOSS.name", {"method.name": "deepcluster_v2"})
    _of(out, loss, temperature="temperature", num_clusters="clusters", kmeans_iters="kmeans_iters")
    crops = out.vissl.any(f"{loss}.memory_params.crops_for_mb") or [0]
    out.maps(f"{loss}.memory_params.crops_for_mb", {"method.bank_crops": crops})
    out.drops("memory_params.embedding_dim DROP_LAST BATCHSIZE_PER_REPLICA num_train_samples", below=f"{loss}.")
    _projector(out)


def _npid(out: Translation, loss: str, batch_size: int) -> None:
    out.maps("LOSS.name", {"method.name": "npid"})
    groups = {"negative_sampling_params.num_negatives": "num_negatives", "memory_params.momentum": "momentum"}
    _of(out, loss, temperature="temperature", loss_type="loss", **groups)
    widths, _ = _layers(out)
    out.maps(HEAD, {"method.output_dim": widths[-1] if widths else 128})
    unused = "norm_embedding norm_constant update_mem_with_emb_index num_train_samples loss_weights"
    out.drops(f"{unused} negative_sampling_params.type memory_params", below=f"{loss}.")


def _cross_entropy(out: Translation, loss: str, batch_size: int) -> None:
    listed = out.vissl.items("DATA.TRAIN.TRANSFORMS")
    names = [str(item.get("name")) for item in listed if isinstance(item, dict)]
    if "ShuffleImgPatches" in names:
        raise ConfigError("LOSS.name: this is Jigsaw, whose views differ; take raysl's own: raysl pretrain jigsaw")
    method = "rotnet" if "ImgRotatePil" in names else "supervised"
    out.maps("LOSS.name", {"method.name": method})
    out.drops("ignore_index reduction weight normalize_output temperature", below=f"{loss}.")
    if method == "rotnet":
        out.drops(HEAD)


METHODS: dict[str, Callable[[Translation, str, int], None]] = {
    "simclr_info_nce_loss": _simclr,
    "multicrop_simclr_info_nce_loss": _simclr,
    "moco_loss": _moco,
    "swav_loss": _swav,
    "swav_momentum_loss": _swav,
    "barlow_twins_loss": _barlow_twins,
    "deepclusterv2_loss": _deepcluster,
    "dino_loss": _dino,
    "nce_loss_with_memory": _npid,
    "cross_entropy_multiple_output_single_target": _cross_entropy,
}
"""What to do with a loss, by its name."""
