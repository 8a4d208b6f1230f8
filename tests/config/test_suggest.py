"""A setting that is called something else here is found by its meaning."""

import pytest

from raysl.components import ALIASES
from raysl.config.build import from_dict
from raysl.config.dump import to_dict
from raysl.config.fields import SYNONYMS, suggest
from raysl.config.load import load_config
from raysl.errors import ConfigError

OWN = {slot: dict(names) for slot, names in ALIASES.items()}


@pytest.fixture(autouse=True)
def aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    for slot, names in OWN.items():
        monkeypatch.setitem(ALIASES, slot, names)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("optim.clip=1", "train.clip_grad"),
        ("optim.learning_rate=1", "optim.lr"),
        ("learning-rate=1", "optim.lr"),
        ("train.lr=1", "optim.lr"),
        ("train.batch=8", "train.batch_size"),
        ("data.num_workers=8", "train.workers"),
        ("gpus=8", "train.workers"),
        ("optim.wd=0", "optim.weight_decay"),
        ("optim.epochs=3", "train.epochs"),
        ("max_epochs=3", "train.epochs"),
        ("data.resolution=32", "data.image_size"),
        ("method.tau=0.1", "method.temperature"),
        ("benchmarks.knn.tau=0.1", "benchmarks.knn.temperature"),
        ("benchmarks.knn.neighbors=20", "benchmarks.knn.k"),
        ("optim.scheduler=cosine", "optim.schedule"),
        ("output_dir=here", "storage"),
        ("train.amp=true", "train.precision"),
        ("model=resnet", "backbone.name"),
    ],
)
def test_the_first_suggestion_means_the_same(word: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", [word])
    assert str(caught.value).partition("did you mean ")[2].strip("?").split(" or ")[0] == meant


def test_every_setting_with_other_names_is_one() -> None:
    config = load_config("simclr", ["benchmarks=[knn, low_shot]", "data.path=/images"])
    with pytest.raises(ConfigError) as caught:
        from_dict({**to_dict(config), "zzz": 1})
    assert "zzz" in str(caught.value)
    known = {"classes", "backbone.name", "data.name", "method.name", "optim.name"}

    def keys(tree: dict[str, object]) -> set[str]:
        return {
            name
            for key, value in tree.items()
            for name in ({key} | (keys(value) if isinstance(value, dict) else set()))
        }

    settings = keys(to_dict(config)) | known
    assert {setting for found in SYNONYMS.values() for setting in found} <= settings


def test_a_setting_of_the_same_name_comes_before_one_of_the_same_meaning() -> None:
    assert suggest("method.k", ["benchmarks.knn.k", "train.neighbours"]) == ["benchmarks.knn.k"]


def test_settings_are_compared_with_those_of_the_component_that_was_chosen() -> None:
    def lines_of(*words: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load_config("simclr", list(words))
        return str(caught.value).splitlines()

    meant = "backbone.dim: no such setting; did you mean backbone.width?"
    assert lines_of("backbone=vit", "backbone.depth=2", "backbone.dim=3") == [meant]
    lines = lines_of("backbone=vot", "backbone.depth=2", "seed=x")
    assert [line.partition(":")[0] for line in lines] == ["seed", "backbone.name"]
