"""What `docs/weights.md` says is so."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import timm

from raysl import cli
from raysl.weights.exports import EXPORTS
from raysl.weights.layouts import LAYOUTS, PLAIN, Rules
from tests.weights.networks import behind, saved, small_resnet

PAGE = (Path(__file__).parents[2] / "docs" / "weights.md").read_text()


def test_every_layout_and_every_way_out_has_a_row() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE, re.MULTILINE))
    assert set(rows) == {*LAYOUTS, *EXPORTS}
    for name, layout in LAYOUTS.items():
        if name not in EXPORTS:
            other = layout.student if layout.default == "teacher" else layout.teacher
            prefix = (layout.locations(Rules()) or PLAIN)[0].prefix
            assert f"`{prefix}`" in rows[name].replace("`module.", "`") or not prefix
            assert bool(other) == bool(rows[name].rpartition("|")[2].strip()), f"what --part gives of {name}"


@pytest.mark.thorough
def test_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tensors = small_resnet().state_dict()
    saved({"state_dict": behind("module.encoder_q.", tensors)}, tmp_path / "moco_v2_800ep_pretrain.pth.tar")
    saved(timm.create_model("convnext_atto").state_dict(), tmp_path / "convnext_atto.pth")
    saved({"nets": {"online": behind("encoder.", tensors)}}, tmp_path / "theirs.pt")
    saved({"state_dict": tensors, "state_dict_ema": tensors}, tmp_path / "last.pth.tar")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to("theirs")
    text = "".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    commands = [line for line in text.splitlines() if line.startswith("raysl convert") and "torchvision" not in line]
    assert len(commands) == 6
    for command in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert not caught.value.code, command
    assert sorted(path.name for path in tmp_path.rglob("model.safetensors")) == 2 * ["model.safetensors"]
