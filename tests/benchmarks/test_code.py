"""What a result's digest of the code follows, and what it does not."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysl.benchmarks.finetune import Finetune
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.suite import code
from raysl.benchmarks.suite.code import closure, code_of
from raysl.components import ALIASES, resolve
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT


def digest(folder: Path, text: str, number: list[int]) -> str:
    """Of a benchmark in a file."""
    number[0] += 1
    path = folder / f"mine{number[0]}.py"
    path.write_text(text)
    return code_of(resolve("benchmark", f"{path}:Mine"))


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Nothing that a test makes of the sources is kept, nor what others made."""
    for cached in (code._digest, code._module):
        cached.cache_clear()
    yield
    for cached in (code._digest, code._module):
        cached.cache_clear()


def test_comments_docstrings_and_layout_do_not_count_and_what_is_computed_does(tmp_path: Path) -> None:
    number = [0]
    first = digest(tmp_path, 'class Mine:\n    """One."""\n    x = 1\n', number)
    assert digest(tmp_path, '# said\nclass Mine:\n    """Two."""\n\n    x = (1)\n', number) == first
    assert digest(tmp_path, 'class Mine:\n    """One."""\n    x = 2\n', number) != first
    assert len(first) == 12


def test_what_makes_features_counts_for_every_benchmark_and_what_only_carries_numbers_for_none() -> None:
    for name in ALIASES["benchmark"]:
        found = closure((resolve("benchmark", name).__module__, *code.EVERY))
        assert {
            "raysl.benchmarks.benchmark",
            "raysl.benchmarks.features.embedding",
            "raysl.data.decode.decode",
            "raysl.transforms.crop",
            "raysl.nn.pooling",
        } <= set(found), name
        carriers = ("raysl.benchmarks.suite", "raysl.report", "raysl.cli", "raysl.config", "raysl.storage.folder")
        assert not [module for module in found if module.startswith(carriers)], name


def test_a_training_counts_its_method_its_loop_and_every_optimizer_that_settings_may_name() -> None:
    found = set(closure((Finetune.__module__, *code.EVERY)))
    assert {"raysl.methods.supervised", "raysl.train.loop", "raysl.optim.sgd"} <= found
    assert {place.partition(":")[0] for place in ALIASES["optimizer"].values()} <= found
    assert "raysl.methods.supervised" not in closure((KNN.__module__, *code.EVERY))


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    ("module", "kinds"),
    [
        ("raysl.benchmarks.neighbours", (KNN,)),
        ("raysl.benchmarks.benchmark", (KNN,)),
        ("raysl.benchmarks.features.embedding", (KNN,)),
        ("raysl.nn.backbones.resnet", (KNN, ResNet)),
        ("raysl.methods.supervised", (Finetune, ResNet)),
    ],
)
def test_a_change_of_a_module_is_another_digest(
    module: str, kinds: tuple[type, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = code_of(*kinds)
    file = code._file(module)
    assert file is not None
    (tmp_path / "said.py").write_text(f"# said\n{file.read_text()}")
    (tmp_path / "changed.py").write_text(f"{file.read_text()}\nCHANGED = 1\n")
    found = code._file
    digests = []
    for name in ("said", "changed"):
        for cached in (code._digest, code._module):
            cached.cache_clear()
        other = tmp_path / f"{name}.py"
        monkeypatch.setattr(code, "_file", lambda own, other=other: other if own == module else found(own))
        digests.append(code_of(*kinds))
    assert digests[0] == before
    assert digests[1] != before


def test_another_backbone_is_other_code() -> None:
    assert code_of(KNN, ResNet) != code_of(KNN, ViT)


@pytest.mark.usefixtures("forgetful")
def test_imports_for_the_type_checker_alone_are_not_followed() -> None:
    text = "if TYPE_CHECKING:\n    from raysl.nn import heads\nelse:\n    import raysl.a\n"
    assert code.Module.of(text).imports == ("raysl.a",)
    assert code.Module.of("def f():\n    from raysl.nn import heads\n").imports == ("raysl.nn", "raysl.nn.heads")


@pytest.mark.usefixtures("forgetful")
def test_all_digests_take_a_moment() -> None:
    began = time.process_time()
    for name in ALIASES["benchmark"]:
        code_of(resolve("benchmark", name), ResNet)
    assert time.process_time() - began < 20


def test_a_class_without_a_source_has_no_digest() -> None:
    made = type("Made", (), {"__module__": "builtins"})
    assert code_of(made) == ""
