"""What the first word of a command leads to: a configuration, a run, or something for which another line is typed."""

import dataclasses
import shlex
from pathlib import Path

from raysl.cli.arguments import DEFAULT_CONFIG
from raysl.errors import ConfigError


def find_config(name: str, overrides: list[str], command: str) -> tuple[str, list[str]]:
    """Return the name or file of a configuration, and the settings that are laid over it.

    The folder of a run stands for its `run.yaml`; for `raysl ingest` images stand for themselves. Anything
    else is refused with the line to type.
    """
    from raysl.config.config_files import expand, is_file_name, packaged_file
    from raysl.config.places import data_setting, is_place, kind_of

    if is_file_name(name) or packaged_file(name):
        if is_sweep(name):
            raise ConfigError(f"{name} is a sweep, not a configuration of a run; type `raysl sweep {name}`")
        return name, overrides
    if not is_place(name) or (kind := kind_of(name)) == "nothing":
        return name, overrides
    quoted = shlex.quote(name)
    if kind in ("run", "checkpoint") and _is_imported(Path(expand(name))):
        raise ConfigError(
            f"{name!r} holds weights of another library, which are trained by a configuration; type `raysl {command} "
            f"CONFIG method.weights={quoted}`"
        )
    if kind == "run":
        return _of_run(name, overrides)
    if kind == "images" and command == "ingest":
        return DEFAULT_CONFIG, [data_setting(name), *overrides]
    lines = {
        "images": f"images; name a configuration before them: `raysl {command} simclr {quoted}` "
        "(`raysl list configs` shows all)",
        "checkpoint": f"a checkpoint; its run goes on by `raysl pretrain {shlex.quote(str(Path(name).parent))}`, and "
        f"another run begins with its weights by `raysl pretrain CONFIG method.weights={quoted}`",
        "sweep": f"the folder of a sweep; `raysl sweep --status {Path(name).name} storage={Path(name).parent}` shows "
        "it, and the command that began it goes on with it",
        "weights": f"a file of weights; `raysl {command} CONFIG method.weights={quoted}` begins with it",
    }
    raise ConfigError(f"{name!r} is {lines[kind]}")


def refuse_run(name: str) -> None:
    """Refuse the configuration of a run in the place of a sweep."""
    from raysl.config.config_files import find, read_file

    tree = read_file(find(name, Path.cwd()))
    if isinstance(tree, dict) and {"method", "backbone"} & tree.keys():
        raise ConfigError(
            f"{name} is the configuration of a run, not a sweep; type `raysl pretrain {name}`, or write a sweep with "
            f"`config: {name}` and a `space:` into a file"
        )


def is_sweep(name_or_path: str) -> bool:
    """Whether a configuration is the file of a sweep: it has a key that sweeps have and runs do not."""
    from raysl.config.config_files import find, read_file

    try:
        tree = read_file(find(name_or_path, Path.cwd()))
    except ConfigError:  # whoever loads it says so
        return False
    if not isinstance(tree, dict) or {"method", "backbone", "base"} & tree.keys():
        return False
    from raysl.config.schema import RunConfig
    from raysl.sweeps.schema import SweepConfig

    of_runs = {field.name for field in dataclasses.fields(RunConfig)}
    return any(field.name in tree and field.name not in of_runs for field in dataclasses.fields(SweepConfig))


def _is_imported(folder: Path) -> bool:
    """Whether a folder, or its only checkpoint, was written by `raysl convert`."""
    from raysl.storage.records import Damaged, read_record

    metas = [*folder.glob("meta.json"), *folder.glob("checkpoint_*/meta.json")]
    if len(metas) != 1:
        return False
    try:
        meta = read_record(metas[0].read_bytes(), str(metas[0]), {"method": str})
    except (Damaged, OSError):  # whoever reads it says so
        return False
    return bool(meta["method"] == "imported")


def _of_run(path: str, overrides: list[str]) -> tuple[str, list[str]]:
    """Return the stored settings of a run, with the name and the storage that its folder has now."""
    from raysl.config.config_files import expand
    from raysl.config.load import load_dumped, stored_tree
    from raysl.storage.addresses import absolute, join

    folder = Path(absolute(expand(path)))
    file = folder / "run.yaml"
    if not file.is_file():
        raise ConfigError(f"{path!r} has checkpoints and no run.yaml; give the configuration that it was trained with")
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        # a run's folder may be a stranger's: settings that name code of others are refused here
        load_dumped(text, str(file))
    except ConfigError as error:
        way = f"if its settings are your own, type `raysl pretrain {shlex.quote(str(Path(path) / 'run.yaml'))}`"
        raise ConfigError("\n".join([*str(error).splitlines(), way])) from error
    tree = stored_tree(text, str(file))
    # a run that was moved or copied has another name or storage than it noted, and goes on where it is now
    if absolute(join(str(tree.get("storage")), str(tree.get("name")))) == str(folder):
        return str(file), overrides
    return str(file), [f"name={folder.name}", f"storage={folder.parent}", *overrides]
