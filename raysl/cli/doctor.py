"""`raysl doctor`."""

import os
import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from raysl.cli.arguments import DEFAULT_CONFIG, Verbose, set_up, show_json, split_arguments
from raysl.errors import ConfigError


def run_doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[storage=URI]", help="A storage that every node has to read and write."),
    ] = None,
    env: Annotated[bool, typer.Option("--env", help="Print the environment, not only its problems.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the environment and its problems as JSON.")] = False,
    verbose: Verbose = False,
) -> None:
    """List likely problems of this machine, and of the cluster that RAY_ADDRESS names.

    On a cluster, which a Ray job also has: versions, memory and clock of each node, how fast nodes sum gradients, how
    many images a second they decode. With storage=URI whether all nodes read and write it. With --env also versions,
    devices, memory and the git revision of this machine. Exit code 0, with problems too; 2 if no cluster answers.
    """
    set_up(verbose)
    storage = _storage(arguments or [])
    from raysl.doctor.findings import cluster_text, storage_text, verdict
    from raysl.process.environment import environment, environment_text, problems

    facts = environment()
    lines = problems(facts)
    seen = _look(storage)
    lines += seen["problems"]
    if as_json:
        show_json({**facts, **seen, "problems": lines})
        return
    if env:
        typer.echo(environment_text(facts))
    if seen["cluster"] is not None:
        typer.echo(cluster_text(seen["cluster"]))
    elif text := storage_text(seen.get("storage")):
        typer.echo(f"storage     {text}")
    for line in lines:
        typer.echo(f"problem: {line}")
    typer.echo(verdict(lines))


def _storage(arguments: list[str]) -> str | None:
    name, overrides = split_arguments(arguments)
    others = [] if name is None else [name]
    others += [word for word in overrides if not word.startswith("storage=")]
    if others:
        raise ConfigError(f"raysl doctor takes storage=URI, not {others[0]!r}; leave it out")
    if not overrides:
        return None
    from raysl.config.load import load_config
    from raysl.storage.addresses import absolute, check_scheme

    storage = absolute(load_config(DEFAULT_CONFIG, overrides).storage)
    check_scheme(storage)
    return storage


def _look(storage: str | None) -> dict[str, Any]:
    address = os.environ.get("RAY_ADDRESS")
    if address:
        from raysl.doctor.look import look_at_cluster
        from raysl.process.signals import handling_signals
        from raysl.process.waiting import waiting

        with handling_signals(), waiting(), redirect_stdout(sys.stderr):  # Ray prints what it has to say of nodes
            cluster = look_at_cluster(address, storage)
        return {"cluster": cluster, "problems": cluster["problems"]}
    if storage is None:
        return {"cluster": None, "problems": []}
    from raysl.doctor.storage import look_at_storage

    seen = look_at_storage(storage)
    return {"cluster": None, "storage": seen, "problems": seen["problems"]}
