"""Images of any number of channels through settings, sources, views, networks and methods."""

import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raysl
from raysl.components import resolve
from raysl.config.load import apply_overrides, load_config
from raysl.data.decode.images import read_images
from raysl.data.ingest.inspect import inspect
from raysl.data.source import make_source
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.schedule import Step
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from raysl.transforms import functional
from raysl.transforms.channels import network_input, to_shown
from tests.small_copy import small_words
from tests.tiers import each

RANGE = "data.value_range=[0,1000]"
SMALL = (
    "backbone.num_stages=1",
    "backbone.width=4",
    "method.hidden_dim=8",
    "method.output_dim=4",
    "data.image_size=16",
)


def samples(num: int, seed: int, kind: Any = np.uint16) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, (20, 24, num)).astype(kind)


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def a_folder(path: Path, num: int, count: int = 16) -> Path:
    for number in range(count):
        file = path / "train" / f"class{number % 2}" / f"{number}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(npy(samples(num, number)))
    return path


def shards(path: Path, num: int, count: int = 16) -> Path:
    path.mkdir(parents=True)
    with tarfile.open(path / "train-0.tar", "w") as tar:
        for number in range(count):
            member = tarfile.TarInfo(f"{number}.npy")
            content = npy(samples(num, number))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def a_table(path: Path, num: int, count: int = 16) -> Path:
    path.mkdir(parents=True)
    images = [npy(samples(num, number)) for number in range(count)]
    pq.write_table(pa.table({"image": pa.array(images, pa.binary())}), path / "train-0.parquet")
    return path


# settings


def test_the_number_alone_sets_mean_deviation_first_layer_and_leaves_the_hue() -> None:
    config = load_config("simclr", ["data.channels=4"])
    assert (config.data.mean, config.data.std, config.backbone.in_channels) == ((0.5,) * 4, (0.25,) * 4, 4)
    assert config.method.views.jitter == (0.8, 0.8, 0.8, 0.0)  # type: ignore[attr-defined]
    assert load_config("simclr", ["data.channels=1"]).method.views.jitter[3] == 0.2  # type: ignore[attr-defined]
    again = apply_overrides(load_config("simclr"), ["data.channels=5"])
    assert (len(again.data.mean), again.backbone.in_channels) == (5, 5)


def test_words_for_channels_mean_what_they_did() -> None:
    for word in ("rgb", "bgr", "gray", "lab_l"):
        config = load_config("simclr", [f"data.channels={word}"])
        assert (config.data.channels, len(config.data.mean), config.backbone.in_channels) == (word, 3, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.channels=13"], r"data.channels: 13 is out of range; give a number in \[1, 12\]"),
        (["data.channels=grey"], "data.channels: 'grey' .*write rgb, bgr, gray, lab_l or a whole number"),
        (["data.channels=4", "data.mean=[0.1,0.2]"], r"data.mean: 2 values for data.channels=4, which needs 4"),
        (["data.std=[0.1]"], "data.std: 1 values for data.channels=rgb, which needs 3"),
        ([RANGE], "data.value_range: .* set data.channels to the number of channels"),
        (["data.channels=4", "data.value_range=[9,2]"], "data.value_range: .* holds no number"),
        (["data.channels=4", "backbone.in_channels=3"], "backbone.in_channels: 3 does not fit data.channels=4"),
        (["backbone.in_channels=4"], "backbone.in_channels: 4 does not fit .* set data.channels=4"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("simclr", words)


# sources


@pytest.mark.parametrize(("source", "make"), [("image_folder", a_folder), ("webdataset", shards), ("parquet", a_table)])
def test_folders_shards_and_tables_hold_arrays(source: str, make: Callable[..., Path], tmp_path: Path) -> None:
    words = [f"data={source}", f"data.path={make(tmp_path / 'images', 4)}", "data.channels=4", RANGE]
    split = make_source(load_config("quickstart", words).data).required("train")
    assert split.num_samples == 16
    rows = split.read(np.array([3]))
    (image,) = read_images(split, np.array([3])).pictures[0].images
    stored = np.load(io.BytesIO(rows.images[0]))  # type: ignore[arg-type]
    assert np.array_equal(image.permute(1, 2, 0), np.rint(stored * 0.255).astype(np.uint8))


def test_arrays_beside_images_are_no_images_of_a_run_in_rgb(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, 3)
    with pytest.raises(ConfigError, match=r".npy and .npz files are images where data.channels= is"):
        make_source(load_config("quickstart", ["data=image_folder", f"data.path={folder}"]).data).required("train")
    index = shards(tmp_path / "shards", 3)
    with pytest.raises(ConfigError, match="no images in the 1 shards"):
        make_source(load_config("quickstart", ["data=webdataset", f"data.path={index}"]).data).required("train")
    words = ["data=webdataset", f"data.path={index}", "data.channels=3", RANGE]
    assert make_source(load_config("quickstart", words).data).required("train").num_samples == 16


def test_another_number_of_channels_is_refused_on_the_driver_with_the_file(tmp_path: Path) -> None:
    words = ["data=image_folder", f"data.path={a_folder(tmp_path, 4)}"]
    with pytest.raises(ConfigError, match=r"class0/0.npy: it has 4 channels, and data.channels=5"):
        prepare(load_config("quickstart", [*words, "data.channels=5", RANGE]))
    with pytest.raises(ConfigError, match=r"class0/0.npy: its values are uint16 .*set data.value_range"):
        prepare(load_config("quickstart", [*words, "data.channels=4"]))


def test_checking_a_dataset_prints_its_mean_and_deviation(tmp_path: Path) -> None:
    data = load_config("quickstart", [f"data={a_folder(tmp_path, 2)}", "data.channels=2", RANGE]).data
    printed = inspect(data).table()
    pixels = np.stack([np.rint(samples(2, number) * 0.255) for number in range(16)]).reshape(-1, 2) / 255
    mean, std = ([f"{value:.4g}" for value in values] for values in (pixels.mean(0), pixels.std(0)))
    assert f"data.mean=[{','.join(mean)}] data.std=[{','.join(std)}]" in printed


# colours


def test_grey_is_the_mean_of_channels_that_are_not_red_green_and_blue() -> None:
    images, every = torch.rand(3, 5, 4, 4), torch.ones(3, dtype=torch.bool)
    grey = images.mean(dim=1, keepdim=True)
    assert torch.allclose(functional.grayscale(images, every), grey.expand_as(images))
    half = torch.full((3,), 0.5)
    assert torch.allclose(functional.adjust_saturation(images, half), (images + grey) / 2)
    assert torch.allclose(functional.adjust_contrast(images, half), (images + images.mean((1, 2, 3), True)) / 2)
    with pytest.raises(ValueError, match="5 channels have no hue"):
        functional.adjust_hue(images, half)


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        (
            "quickstart",
            ["method.views.jitter_p=0.8", "method.views.jitter=[0.4,0.4,0.4,0.1]"],
            "ColorJitter: a hue .* method.views.jitter to 0",
        ),
        ("digits/colorization", [], "data.channels is 4, and colorization needs RGB"),
    ],
)
def test_colours_that_such_images_lack_are_refused_with_what_to_set(
    recipe: str, words: list[str], message: str, tmp_path: Path
) -> None:
    base = [f"data={a_folder(tmp_path, 4)}", "data.channels=4", RANGE, "train.batch_size=16"]
    with pytest.raises(ConfigError, match=message):
        prepare(load_config(recipe, [*base, *words]))


def test_pictures_for_people_show_the_first_three_channels_or_the_first_alone() -> None:
    images = torch.rand(2, 5, 4, 4)
    assert torch.equal(to_shown(images), images[:, :3])
    assert torch.equal(to_shown(images[:, :2]), images[:, :1].expand(-1, 3, -1, -1))


def test_a_number_leaves_the_channels_and_normalises_each_by_its_own() -> None:
    images = torch.randint(0, 256, (2, 4, 3, 3), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3, 0.4), (0.5, 0.6, 0.7, 0.8)
    expected = (images / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(network_input(images, mean, std, 4), expected, atol=1e-6)


# networks

NETWORKS = {
    "resnet": {"depth": 10, "width": 8},
    "resnet_sk": {"name": "resnet", "depth": 14, "width": 16, "sk_ratio": 0.25},
    "vit": {"size": "nano", "patch_size": 8, "image_size": 32},
    "alexnet": {"image_size": 128, "output": "mean"},
    "alexnet_sobel": {"name": "alexnet", "image_size": 128, "output": "mean", "variant": "deepcluster"},
    "regnet": {"depth": 4, "w_0": 8, "w_a": 8.0, "w_m": 2.0, "group_width": 8},
    "swin": {"width": 32, "depths": (1, 2), "windows": (4,), "image_size": 32},
    "torchvision": {"model": "mobilenet_v3_small"},
    "torchvision_vit": {"name": "torchvision", "model": "swin_t"},
    "timm": {"model": "test_resnet"},
    "timm_vit": {"name": "timm", "model": "test_vit"},
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "num"), [(key, num) for key in NETWORKS for num in (1, 4, 12) if num == 4 or key != "torchvision_vit"]
)
def test_every_network_takes_any_number_of_channels_and_uses_each(key: str, num: int) -> None:
    options = dict(NETWORKS[key])
    kind = resolve("backbone", str(options.pop("name", key)))
    torch.manual_seed(0)
    network: Backbone = kind(kind.Config(**options, in_channels=num)).eval()
    images = torch.randn(1, num, network.native_size, network.native_size, requires_grad=True)
    out = network(images)
    assert out.shape == (1, network.feature_dim)
    out.square().sum().backward()
    assert images.grad is not None
    assert (images.grad.abs().amax(dim=(0, 2, 3)) > 0).all()
    assert kind.info(network.config).feature_dim == network.feature_dim


@pytest.mark.thorough
def test_outputs_of_a_first_layer_of_torchvision_keep_their_scale_for_many_channels() -> None:
    kind = resolve("backbone", "torchvision")
    scales = []
    for num in (3, 12):
        torch.manual_seed(0)
        network = kind(kind.Config(model="resnet18", in_channels=num))
        scales.append(float(network.network.conv1(torch.randn(4, num, 32, 32)).std().detach()))
    assert scales[1] == pytest.approx(scales[0], rel=0.1)


@pytest.mark.thorough
def test_a_network_of_ones_own_that_ignores_the_number_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from raysl.nn.backbones.resnet import ResNet\nfrom torch import nn\n\n\nclass Mine(ResNet):\n"
        "    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.conv1 = nn.Conv2d(3, config.width, 3, 1, 1, bias=False)\n"
    )
    words = [f"data={a_folder(tmp_path / 'images', 4)}", "data.channels=4", RANGE, "train.batch_size=16", *SMALL]
    words.append(f"backbone.name={mine}:Mine")
    with pytest.raises(ConfigError, match=r"does not take images of 4 channels .* config.in_channels"):
        prepare(load_config("quickstart", words))


# methods


METHODS = (
    "aim",
    "all4one",
    "capi",
    "cmae",
    "cross_mae",
    "detcon",
    "dino",
    "fastsiam",
    "franca",
    "ibot",
    "jigsaw",
    "mae",
    "maskfeat",
    "mim_refiner",
    "mixmim",
    "nepa",
    "nnsiam",
    "paka",
    "pixio",
    "rotnet",
    "salt",
    "simclr",
    "simmim",
    "smog",
    "spark",
    "ssl_ey",
    "swav",
    "vicregl",
)
"""One of each family, and all that look at pixels."""


@pytest.mark.thorough
@pytest.mark.parametrize("method", each(METHODS, now=("simclr", "mae")))
def test_a_step_of_every_method_takes_four_channels(method: str, tmp_path: Path) -> None:
    folder = a_folder(tmp_path, 4)
    side = load_config(f"digits/{method}").data.image_size
    words = [f"data={folder}", f"data.image_size={side}", "data.channels=4", RANGE, "data.limit=null"]
    config = load_config(f"digits/{method}", [*words, *small_words(f"digits/{method}")])
    config = replace(config, train=replace(config.train, batch_size=8, accumulate=1), benchmarks={})
    run = prepare(config)
    state = TrainState.create(run.setup, "cpu")
    batch = run.loader.finish(run.loader.load(0, 0, 1), 0, torch.device("cpu"))
    assert next(iter(batch.views.values())).shape[-3] == 4
    state.method.train()
    loss = state.method(batch, Step(0, 10, 2)).loss
    loss.backward()
    assert torch.isfinite(loss)


# in memory


@pytest.mark.thorough
def test_views_of_images_in_memory_are_those_of_their_files(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, 4)
    config = load_config("quickstart", [f"data={folder}", "data.channels=4", RANGE, *SMALL, "train.batch_size=4"])
    images = [samples(4, number) for number in range(4)]
    of_arrays, of_tensors = (
        raysl.views(config, given, epoch=0)[0].views["global"]
        for given in (images, [torch.from_numpy(image).permute(2, 0, 1) for image in images])
    )
    assert of_arrays.shape == (4, 2, 4, 16, 16)
    assert torch.equal(of_arrays, of_tensors)
    with pytest.raises(ConfigError, match="it has 3 channels"):
        raysl.views(apply_overrides(config, ["data.value_range=null"]), [samples(3, 0, np.uint8)] * 4, epoch=0)
