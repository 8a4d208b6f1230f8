"""`raysl doctor`."""

from typing import Annotated

import typer


def run_doctor(
    env: Annotated[bool, typer.Option("--env", help="Print the environment, not only what is wrong with it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the environment and its problems as JSON.")] = False,
) -> None:
    """Say what is likely to go wrong on this machine; with --env, versions, devices, memory, the git revision."""
    from raysl.process.environment import environment, environment_json, environment_text, problems

    found = environment()
    if as_json:
        typer.echo(environment_json(found))
        return
    if env:
        typer.echo(environment_text(found))
    lines = problems(found)
    for line in lines:
        typer.echo(f"problem: {line}")
    if not lines:
        typer.echo("nothing found that would stand in the way of a run")
