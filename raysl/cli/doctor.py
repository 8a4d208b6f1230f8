"""`raysl doctor`."""

from typing import Annotated

import typer


def run_doctor(
    env: Annotated[bool, typer.Option("--env", help="Print the environment, not only its problems.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the environment and its problems as JSON.")] = False,
) -> None:
    """List likely problems of this machine; with --env also versions, devices, memory and the git revision."""
    from raysl.process.environment import environment, environment_json, environment_text, problems

    facts = environment()
    if as_json:
        typer.echo(environment_json(facts))
        return
    if env:
        typer.echo(environment_text(facts))
    lines = problems(facts)
    for line in lines:
        typer.echo(f"problem: {line}")
    if not lines:
        typer.echo("nothing found that would stand in the way of a run")
