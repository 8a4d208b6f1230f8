"""Configurations of other libraries come from strangers: nothing of them runs, is fetched, or grows without bound."""

import os
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.translation import vissl
from raysl.translation.vissl import convert_config
from raysl.translation.vissl_settings import read_tree

FILES = Path(__file__).parents[1] / "translation"
MOCO = (FILES / "moco.yaml").read_text()


def converted(tmp_path: Path, text: str, *words: str) -> str:
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    return convert_config([str(path)], words).text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("config: {LOSS: !!python/object/apply:os.system ['touch here']}", "not YAML"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nconfig: {LOSS: *b}", "aliases"),
        ("config: " + "{a: " * 60 + "1" + "}" * 60, "levels deep"),
        ("config: {LOSS: " + "x" * (1 << 17) + "}", "more than 131,072 bytes"),
        ("- 1\n- 2", "has no settings"),
        ("config: [LOSS", "not YAML"),
        ("model: 3", "no configuration of a training of VISSL"),
    ],
    ids=["code", "aliases", "deep", "large", "list", "broken", "other"],
)
def test_a_file_that_is_not_plain_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        converted(tmp_path, text)
    assert said in str(error.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="not a regular file"):
        convert_config([str(tmp_path / "pipe.yaml")])


@pytest.mark.parametrize(
    "place", ["reference://::file:///refs.json", "s3://b/x?endpoint_override=evil.example", "/x/$HOME", "<img_path>"]
)
def test_a_place_that_does_more_than_read_is_not_taken_over(place: str, tmp_path: Path) -> None:
    text = converted(tmp_path, MOCO, f"config.DATA.TRAIN.DATA_PATHS=['{place}']", f"config.CHECKPOINT.DIR='{place}'")
    settings = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert place not in settings


def test_texts_of_the_file_stay_in_their_comments_and_values(tmp_path: Path) -> None:
    hostile = 'config.DATA.TRAIN.DATASET_NAMES=["x\\noptim: {lr: 9}\\x1b[2J${oc.env:HOME}"]'
    text = converted(tmp_path, MOCO, hostile, 'config.MODEL.NEW="y\\nseed: 7"', "data.path=.")
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    config = load_config(str(path))
    assert (config.optim.lr, config.seed) == (0.03, 0)
    assert "\x1b" not in text


def places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield (*above, key)
        yield from places(tree[key], (*above, key))


@pytest.mark.parametrize("name", ["simclr", "swav", "dino", "linear"])
def test_values_of_any_kind_are_errors_with_a_message_or_pass(name: str) -> None:
    tree = read_tree(str(FILES / f"{name}.yaml"))
    whole, others = (
        list(places(tree)),
        [None, True, -1, 10**30, float("nan"), "x", [], {}, [[]], [None], {"a": 1}, [1, 2]],
    )
    random = Random(name)
    for place in random.sample(whole, 25):
        changed = deepcopy(tree)
        node = changed
        for key in place[:-1]:
            node = node[key]
        node[place[-1]] = random.choice(others)
        with suppress(ConfigError):
            vissl._translate(changed, name, {}).config()
