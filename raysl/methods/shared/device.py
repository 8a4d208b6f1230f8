"""Place a method on its device, computed and distributed as `train` says."""

import platform
import shutil
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from raysl import distributed as dist
from raysl.config.schema import TrainConfig
from raysl.methods.method import Backbone, ConfigError, Method
from raysl.methods.shared.compiled_step import check_compiled, compile_step
from raysl.nn.batch_norm import convert_sync_batch_norm
from raysl.nn.recompute import recompute


def check_device_settings(train: TrainConfig, method_class: type[Method], units: Collection[str]) -> None:
    """Refuse contradictory settings, on the driver.

    Args:
        units: names of `Backbone.units` of its backbone.
    """
    for name in () if train.recompute == "all" else train.recompute:
        if name not in units:
            raise ConfigError(
                f"train.recompute: no stage {name!r} to compute again in this backbone; choose from "
                f"{', '.join([*units, 'all'])}"
            )
    check_compiled(train, method_class)
    kind = train.parallel
    if kind == "ddp":
        return
    if train.least_workers == 1:
        number = "may be" if train.is_elastic else "is"
        raise ConfigError(
            f"train.parallel={kind} shares memory between workers, and there {number} 1; set train.workers=2 or more, "
            "or train.parallel=ddp"
        )
    if kind == "zero1":
        return
    for name, off in {"bucket_mb": None, "static_graph": False, "compress_gradients": None}.items():
        if getattr(train, name) != off:
            raise ConfigError(f"train.{name} is an option of ddp and zero1; leave it out with train.parallel=fsdp")
    if train.channels_last:
        raise ConfigError("train.channels_last=true does not go with train.parallel=fsdp; leave it out")
    if method_class.before_epoch is not Method.before_epoch:
        raise ConfigError(
            f"{method_class.__name__} looks at all images between epochs, which train.parallel=fsdp cannot do with "
            "shares of a network; set train.parallel=zero1 or ddp"
        )
    if train.online_probe is not None:
        raise ConfigError(
            "train.online_probe looks at the network after each step, which train.parallel=fsdp cannot do with shares "
            "of it; set train.online_probe=null, or train.parallel=zero1 or ddp"
        )
    if train.eval_every is not None:
        raise ConfigError(
            "train.eval_every tries the method outside of its steps, which train.parallel=fsdp cannot do with shares "
            "of a network; set train.eval_every=null, or train.parallel=zero1 or ddp"
        )


def place_on_device(method: Method, train: TrainConfig, device: torch.device) -> None:
    """Move and change a method in place; every rank calls it before it builds the optimizer."""
    is_sharded = train.parallel == "fsdp" and dist.world() > 1
    # A sharded method moves part by part instead, so that no device ever holds all of it.
    if not is_sharded:
        method.to(device)
    is_last = device.type == "cuda" if train.channels_last is None else train.channels_last
    if is_last and not is_sharded:
        method.to(memory_format=torch.channels_last)
    if train.sync_bn and dist.world() > 1:
        convert_sync_batch_norm(method, _group(train))
    recompute(recomputed_units(method, train))
    units = [unit for stages in _units(method) for parts in stages.values() for unit in parts]
    if is_sharded:
        dist.shard(method, units, device)
    if train.compile == "step":
        compile_step(method, train.cuda_graphs)
    elif train.compile:
        for unit in units:
            unit.compile()


def prepare_device(train: TrainConfig, device: torch.device) -> None:
    """Set the precision of products and convolutions of fp32 tensors in this process.

    Raises:
        ConfigError: if the device lacks this precision or that of `train.precision`, or a compiler is missing.
    """
    is_on_gpu = device.type == "cuda"
    if train.precision == "bf16" and is_on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(f"{torch.cuda.get_device_name(device)} has no bf16; set train.precision=fp16 or fp32")
    if train.compile and not is_on_gpu and not any(shutil.which(name) for name in ("g++", "clang++")):
        raise ConfigError(
            f"train.compile={str(train.compile).lower()} needs a C++ compiler on a CPU, and there is no g++; install "
            "one, or set train.compile=false"
        )
    if train.cuda_graphs and not is_on_gpu:
        raise ConfigError("train.cuda_graphs=true needs a GPU, and this worker has none; set train.cuda_graphs=false")
    kind = train.fp32_products
    if kind == "default":
        return
    if kind == "bf16" and is_on_gpu:
        raise ConfigError("train.fp32_products=bf16 is for CPUs; set tf32, or train.precision=bf16")
    backends: Any = torch.backends
    on_gpu, on_cpu = (backends.cuda.matmul, backends.cudnn.conv), (backends.mkldnn.matmul, backends.mkldnn.conv)
    for products in on_gpu if is_on_gpu else on_cpu:
        products.fp32_precision = kind


def _units(method: nn.Module) -> Iterator[dict[str, list[nn.Module]]]:
    """Yield the units of each backbone in a method: the student's, and a teacher's."""
    return (module.units() for module in method.modules() if isinstance(module, Backbone))


def recomputed_units(method: nn.Module, train: TrainConfig) -> list[nn.Module]:
    """Return the configured units; a teacher, which stores no activations, may have other stages than the student."""
    recomputed: list[nn.Module] = []
    for units in _units(method):
        names = units if train.recompute == "all" else train.recompute
        recomputed += [unit for name in names for unit in units.get(name, ())]
    return recomputed


def _group(train: TrainConfig) -> dist.Group | None:
    """Return the ranks that normalise together."""
    if train.sync_bn_ranks is None:
        return None
    if train.sync_bn_ranks == "node":
        return dist.group_of(dist.gather_objects(platform.node()))
    return dist.group_of([rank // train.sync_bn_ranks for rank in range(dist.world())])
