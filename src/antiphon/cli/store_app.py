"""The options of `antiphon store`; `store` does the work, and is imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli import options

app = typer.Typer(
    name="store",
    help="The database of projects, users and keys.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def status(config: options.Config = None) -> None:
    """Say where the database stands, and what an upgrade would do."""
    from antiphon.cli import store as command
    from antiphon.cli.asked import Asked

    raise typer.Exit(command.status(Asked(config=config)))


@app.command()
def upgrade(
    config: options.Config = None,
    backup: Annotated[
        Path | None, typer.Option(help="Where a SQLite file is copied to first. [beside itself]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
) -> None:
    """Bring the database up to this version; every row is kept."""
    from antiphon.cli import store as command
    from antiphon.cli.asked import Asked

    raise typer.Exit(command.upgrade(Asked(config=config), backup, dry_run))


@app.command("admin-key")
def admin_key(
    config: options.Config = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write it into. [admin.key in ANTIPHON_HOME]")
    ] = None,
) -> None:
    """Make another operator's key, where the others are lost; servers that run accept it at once."""
    from antiphon.cli import store as command
    from antiphon.cli.asked import Asked

    raise typer.Exit(command.admin_key(Asked(config=config), out))
