import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone, BackboneInfo, visible_places
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.torchvision_models import TorchvisionModel
from raysl.nn.backbones.vit import ViT


class Mine(Backbone):
    """What a user writes: nothing beyond what must be there."""

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        name: str = "mine"
        reads_a_tensor: bool = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.feature_dim = int(torch.linspace(4, 8, 2).max()) if config.reads_a_tensor else 8
        self.linear = nn.Linear(3, self.feature_dim)
        self.noise = nn.Parameter(torch.randn(4, device="cpu"))

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.mean(dim=(2, 3)))

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        return {name: self(images) for name in names}


@pytest.mark.parametrize("reads_a_tensor", [False, True])
def test_a_backbone_of_four_names_has_its_facts(reads_a_tensor: bool) -> None:
    assert Mine.info(Mine.Config(reads_a_tensor=reads_a_tensor)) == BackboneInfo(8, None, {})
    assert Mine(Mine.Config()).no_decay() == set()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ResNet, {}),
        (ViT, {"drop_path": 0.1}),
        (ViT, {"position": "sincos"}),
        (TorchvisionModel, {}),
        (TorchvisionModel, {"model": "regnet_x_400mf"}),
        (Mine, {}),
        (Mine, {"reads_a_tensor": 1}),
    ],
)
def test_facts_cost_no_random_number(kind: type[Backbone], fields: dict[str, object]) -> None:
    torch.manual_seed(0)
    expected = torch.randn(3)
    torch.manual_seed(0)
    kind.info(kind.Config(**fields))
    assert torch.equal(torch.randn(3), expected)


def test_facts_of_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="depth=20"):
        ResNet.info(ResNet.Config(depth=20))


def test_visible_places_are_those_without_a_mask_in_their_order() -> None:
    mask = torch.tensor([[[True, False, True], [False, True, False]], [[False, False, False], [True, True, True]]])
    places = visible_places(mask, 3)
    assert places.tolist() == [[1, 3, 5], [0, 1, 2]]
    assert places.dtype == torch.int64


@pytest.mark.cluster
def test_facts_do_not_wait_for_torchs_compiler() -> None:
    code = (
        "import sys; from raysl.nn.backbones.resnet import ResNet; from raysl.nn.backbones.vit import ViT; "
        "ResNet.info(ResNet.Config()); ViT.info(ViT.Config()); "
        "ViT.info(ViT.Config(position='sincos', layer_scale=0.1, num_registers=4, mask_token=True)); "
        "sys.exit('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
