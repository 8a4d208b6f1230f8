"""Imports that users wrote for earlier versions."""

import importlib
import sys

import pytest

import raysl
from raysl.former_modules import MOVED


@pytest.mark.parametrize("name", MOVED)
def test_a_moved_module_is_found_under_its_former_name_with_a_warning(name: str) -> None:
    sys.modules.pop(name, None)
    with pytest.warns(FutureWarning, match=f"{name} has moved to {MOVED[name]}"):
        former = importlib.import_module(name)
    module = importlib.import_module(MOVED[name])
    public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
    assert public
    assert all(getattr(former, attribute) is getattr(module, attribute) for attribute in public)


def test_the_line_of_a_users_method_still_gives_the_collectives() -> None:
    sys.modules.pop("raysl.dist", None)
    vars(raysl).pop("dist", None)
    with pytest.warns(FutureWarning):
        from raysl import dist  # type: ignore[attr-defined]
    from raysl import distributed

    assert dist.all_gather is distributed.all_gather


def test_an_unknown_module_is_still_unknown() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("raysl.no_such_module")


def test_notebooks_take_connect_from_the_room_of_clusters() -> None:
    from raysl.cluster import connect
    from raysl.cluster.connection import connect as function

    assert connect is function
