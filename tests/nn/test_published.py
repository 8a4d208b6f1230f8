"""Published weights come from the libraries' own caches, and only with the hash that was published."""

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save as to_safetensors
from torch import hub, nn
from torchvision import models

from raysl.checkpoint.published import PublishedWeights
from raysl.errors import ConfigError, StorageError
from raysl.nn.backbones.published import hub_file, torch_file
from raysl.nn.backbones.timm_models import TimmModel
from raysl.nn.backbones.torchvision_models import TorchvisionModel
from tests.weights.networks import shaken
from tests.weights.published import COMMIT, TINY, digest_of, empty_cache, empty_hub_cache, in_hub_cache, publish

Publish = Callable[[str, Any], Path]


@pytest.fixture
def torch_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of torch's cache of weights."""
    return empty_cache(tmp_path, monkeypatch)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the Hub's cache, of a machine without a network."""
    return empty_hub_cache(tmp_path, monkeypatch)


@pytest.fixture
def published(tmp_path: Path, torch_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Publishes a file as the default weights of a name of torchvision; the path that its address leads to."""
    return lambda model, content: publish(model, content, tmp_path, monkeypatch)


def tiny(model: str = TINY) -> Any:
    torch.manual_seed(3)
    return shaken(timm.create_model(model))


def filled(backbone: Any, config: Any) -> Any:
    """A backbone with its published weights."""
    network = backbone(config)
    PublishedWeights(config.name, backbone.published(config)).fill_backbone(network)
    return network.eval()


@pytest.mark.thorough
def test_a_network_of_torchvision_gets_its_published_weights_and_a_copy_stays(
    torch_cache: Path, published: Publish
) -> None:
    theirs = shaken(models.shufflenet_v2_x0_5())
    file = published("shufflenet_v2_x0_5", theirs.state_dict())
    config = TorchvisionModel.Config(model="shufflenet_v2_x0_5", pretrained=True)
    network = filled(TorchvisionModel, config)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        theirs.fc = nn.Identity()
        assert torch.equal(network(images), theirs(images))
    assert (torch_cache / file.name).read_bytes() == file.read_bytes()
    file.unlink()
    assert TorchvisionModel.published(config).file.sha256 == digest_of((torch_cache / file.name).read_bytes())


def test_a_download_with_another_hash_is_refused_and_leaves_nothing(torch_cache: Path, published: Publish) -> None:
    file = published("shufflenet_v2_x0_5", models.shufflenet_v2_x0_5().state_dict())
    file.write_bytes(file.read_bytes() + b"?")
    config = TorchvisionModel.Config(model="shufflenet_v2_x0_5", pretrained=True)
    with pytest.raises(ConfigError, match=r"the download is damaged or another file \(invalid hash value"):
        TorchvisionModel.published(config)
    assert list(torch_cache.iterdir()) == []


def test_a_file_in_the_cache_is_read_only_with_the_hash_of_its_name(torch_cache: Path) -> None:
    url = models.ResNet18_Weights.IMAGENET1K_V1.url  # a true name, of a file that is not this one
    torch_cache.mkdir(parents=True)
    (torch_cache / "resnet18-f37072fd.pth").write_bytes(b"other weights")
    with pytest.raises(ConfigError, match=r"begins with .{8} and the published one with f37072fd; delete it") as caught:
        torch_file(url)
    assert str(torch_cache / "resnet18-f37072fd.pth") in str(caught.value)
    content = b"a file of weights"
    name = f"resnet18-{digest_of(content)[:8]}.pth"
    (torch_cache / name).write_bytes(content)
    assert torch_file(f"https://download.pytorch.org/models/{name}").sha256 == digest_of(content)


def test_what_has_no_hash_or_cannot_be_reached_is_refused_with_what_to_do(
    torch_cache: Path, hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"published without a hash.*raysl convert"):
        torch_file("https://dl.fbaipublicfiles.com/deit/M36_384.pth")
    with pytest.raises(StorageError, match=f"or bring the file to {torch_cache}/gone-12345678.pth"):
        torch_file((tmp_path / "gone-12345678.pth").as_uri())
    with pytest.raises(StorageError, match=f"or bring the file to the cache of the Hub, {hub_cache}"):
        hub_file("timm/test_resnet.r160_in1k")
    with pytest.raises(ConfigError, match=r"backbone\.revision: 'main' is not a whole commit"):
        hub_file("timm/test_resnet.r160_in1k", revision="main")


def test_all_published_files_of_torchvision_have_a_hash_in_their_names() -> None:
    from raysl.nn.backbones.published import HASH_IN_NAME

    names = models.list_models(module=models)
    urls = [weights.url for name in names for weights in models.get_model_weights(name)]
    assert [url for url in urls if not HASH_IN_NAME.search(url.rpartition("/")[2])] == []
    assert len(urls) > 100
    assert hub.HASH_REGEX.search("resnet18-f37072fd.pth") is not None, "torch reads the same digits"


@pytest.mark.thorough
def test_a_network_of_timm_gets_its_weights_from_the_hubs_cache_with_commit_and_hash(hub_cache: Path) -> None:
    theirs = tiny()
    content = to_safetensors(theirs.state_dict())
    blob = in_hub_cache(hub_cache, f"timm/{TINY}.r160_in1k", content)
    config = TimmModel.Config(model=TINY, pretrained=True)
    network = filled(TimmModel, config)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(network(images), theirs.forward_head(theirs.forward_features(images), pre_logits=True))
    found = TimmModel.published(config)
    assert (found.name, found.file.revision) == (f"{TINY}.r160_in1k", COMMIT)
    assert found.file.sha256 == digest_of(content)
    assert found.file.uri == f"https://huggingface.co/timm/{TINY}.r160_in1k/resolve/{COMMIT}/model.safetensors"
    pinned = TimmModel.Config(model=TINY, pretrained="r160_in1k", revision=COMMIT)
    assert TimmModel.published(pinned).file == found.file
    blob.write_bytes(content + b"?")
    with pytest.raises(ConfigError, match=r"its SHA-256 begins with .*; delete it"):
        TimmModel.published(config)


class Hub(BaseHTTPRequestHandler):
    """The Hub's answers for one file, whose hash it tells."""

    content, published, asked = b"", "", 0

    def do_HEAD(self) -> None:
        type(self).asked += 1
        self.send_response(200)
        for name, value in {
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{self.published}"',
            "Content-Length": str(len(self.content)),
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *words: object) -> None:
        """Print nothing."""


@pytest.fixture
def at_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A Hub on this machine, and an empty cache."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    end = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", end)
    monkeypatch.setattr(
        huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", end + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield Hub
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_file_is_downloaded_from_the_hub_once_and_only_with_its_hash(at_hub: type[Hub], tmp_path: Path) -> None:
    at_hub.content, at_hub.published = b"weights", digest_of(b"weights")
    file = hub_file("timm/test_resnet.r160_in1k", revision=COMMIT)
    assert (file.path.read_bytes(), file.sha256, file.revision) == (b"weights", at_hub.published, COMMIT)
    asked = at_hub.asked
    assert hub_file("timm/test_resnet.r160_in1k", revision=COMMIT) == file
    assert at_hub.asked == asked, "a pinned commit needs no network once it is there"
    at_hub.published = digest_of(b"other")
    with pytest.raises(ConfigError, match="its SHA-256 begins with"):
        hub_file("timm/another")


def test_a_hub_that_cannot_be_reached_is_refused_without_asking_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        end = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", end)
    monkeypatch.setattr("raysl.nn.backbones.published.getproxies", dict)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"waited {seconds} s"))
    with pytest.raises(StorageError, match=r"cannot download .*refused.*; try again where it can be reached, or bring"):
        hub_file(f"timm/{TINY}.r160_in1k")
    in_hub_cache(tmp_path, f"timm/{TINY}.r160_in1k", b"weights")
    assert hub_file(f"timm/{TINY}.r160_in1k").path.read_bytes() == b"weights"
    assert "Retrying" not in caplog.text


def test_a_file_of_the_hub_without_a_published_hash_is_refused(hub_cache: Path) -> None:
    in_hub_cache(hub_cache, f"timm/{TINY}.r160_in1k", b"{}", published="7cb18dc9bafbfcf74629a4b760af1b160957a83e")
    with pytest.raises(ConfigError, match="the Hub tells no SHA-256 of"):
        TimmModel.published(TimmModel.Config(model=TINY, pretrained=True))


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('code of a file of weights ran')",))


def test_no_code_in_a_published_file_runs(published: Publish) -> None:
    published("shufflenet_v2_x0_5", {"fc": Harmful()})
    with pytest.raises(ConfigError, match=r"cannot read the weights in .*: they hold more than tensors"):
        TorchvisionModel.published(TorchvisionModel.Config(model="shufflenet_v2_x0_5", pretrained=True))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TorchvisionModel.Config(model="resnet50", pretrained="V9"), "no weights 'V9'; it has IMAGENET1K_V1, IMAGENET"),
        (TorchvisionModel.Config(model="resnet5", pretrained=True), "torchvision has no classification model"),
        (TimmModel.Config(model="resnet50", pretrained="nobody"), "no weights 'nobody'; it has a1_in1k, "),
        (TimmModel.Config(model="resnet5", pretrained=True), "timm has no classification model"),
    ],
)
def test_weights_that_a_library_lacks_are_refused_with_what_it_has(config: Any, message: str) -> None:
    backbone = TimmModel if isinstance(config, TimmModel.Config) else TorchvisionModel
    with pytest.raises(ConfigError, match=message):
        backbone.published(config)


@pytest.mark.thorough
def test_weights_of_another_shape_are_refused_with_the_setting(published: Publish) -> None:
    published("shufflenet_v2_x0_5", models.shufflenet_v2_x1_0().state_dict())
    with pytest.raises(ConfigError, match=r"_X0_5_Weights\.IMAGENET1K_V1 does not fit .* there and .* here"):
        filled(TorchvisionModel, TorchvisionModel.Config(model="shufflenet_v2_x0_5", pretrained=True))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["densenet121", "mnasnet0_5", "vit_b_32"])
def test_names_of_torchvisions_older_files_are_read(model: str, torch_cache: Path, published: Publish) -> None:
    """Its DenseNets were published with `norm.1` for `norm1`, its ViTs with `mlp.linear_1` for `mlp.0`."""
    theirs = shaken(models.get_model(model))
    old = {"norm1.": "norm.1.", "norm2.": "norm.2.", "conv1.": "conv.1.", "conv2.": "conv.2."}

    def renamed(name: str) -> str:
        if model == "vit_b_32":
            return name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2.")
        for new, former in old.items() if "denselayer" in name else ():
            name = name.replace(new, former)
        return name

    published(model, {renamed(name): value for name, value in theirs.state_dict().items()})
    network = filled(TorchvisionModel, TorchvisionModel.Config(model=model, pretrained=True))
    mine = network.network.state_dict()
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in mine.items())
