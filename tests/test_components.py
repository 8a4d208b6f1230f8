import importlib
import sys
from pathlib import Path

import pytest

from raysl.components import ALIASES, resolve
from raysl.errors import ConfigError


def error_of(slot: str, name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(slot, name)
    return str(caught.value)


@pytest.mark.parametrize(("slot", "name"), [(slot, name) for slot, names in ALIASES.items() for name in names])
def test_every_alias_is_a_class_with_settings(slot: str, name: str) -> None:
    module, _, attribute = ALIASES[slot][name].rpartition(":")
    found = resolve(slot, name)
    assert found is getattr(importlib.import_module(module), attribute)
    assert found.Config.__dataclass_params__.frozen


def test_a_class_is_found_by_module_and_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_for_raysl.py").write_text("class Mine: pass\n")
    monkeypatch.chdir(tmp_path)
    by_file = resolve("method", "mine_for_raysl.py:Mine")
    assert by_file.__name__ == "Mine"
    assert resolve("method", f"{tmp_path}/mine_for_raysl.py:Mine") is by_file
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve("method", "mine_for_raysl:Mine").__module__ == "mine_for_raysl"


def test_a_file_that_fails_is_tried_anew(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise ZeroDivisionError\n")
    before = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        resolve("method", f"{path}:Mine")
    assert not {name for name in set(sys.modules) - before if name.startswith("raysl_user_")}
    path.write_text("class Mine: pass\n# mended\n")
    assert resolve("method", f"{path}:Mine").__name__ == "Mine"


def test_names_that_pick_nothing_are_told_with_what_is_near(tmp_path: Path) -> None:
    assert error_of("method", "simclrr").startswith("unknown method 'simclrr'; did you mean 'simclr'?")
    assert "known: catalog, " in error_of("source", "zzz")
    assert "cannot import 'no_such_package'" in error_of("method", "no_such_package:Mine")
    assert f"no file '{tmp_path}/none.py'" in error_of("method", f"{tmp_path}/none.py:Mine")
    (tmp_path / "some.py").write_text("from pathlib import Path\nclass Mine: pass\nyours = 3\n")
    assert error_of("method", f"{tmp_path}/some.py:Yours").endswith("has no class 'Yours'; its classes: Mine")
    assert "has no class 'yours'" in error_of("method", f"{tmp_path}/some.py:yours")


@pytest.mark.parametrize("name", [":", ":X", ".a:X", "a..b:X", "a b:X"])
def test_a_module_that_cannot_have_that_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the name of a module; write package\.module:Class"):
        resolve("method", name)
