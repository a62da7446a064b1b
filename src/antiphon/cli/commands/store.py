"""`antiphon store`: the database's schema, backups of a server's files, and another operator's key."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import options
from antiphon.cli.admin_client import ADMIN_FILE
from antiphon.cli.output import FAILED, note, report_errors
from antiphon.errors import StoreRefused

if TYPE_CHECKING:
    from antiphon.store.backup import BackupSources, Manifest
    from antiphon.store.database import Database

MAKER = "antiphon store admin-key"
"""The author in the audit of a key that this command makes."""

app = options.make_group("store", "The database of projects, users and keys.")


@app.command()
def status(config: options.Config = None) -> None:
    """Show the state of the database's schema, and what an upgrade would do."""
    with _open_database(config) as database:
        if not _print_status(database):
            raise typer.Exit(FAILED)


@app.command()
def upgrade(
    config: options.Config = None,
    backup: Annotated[
        Path | None, typer.Option(help="Where to copy a SQLite file first. [beside it]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what it would do.")] = False,
) -> None:
    """Upgrade the database to this version. Every row is kept."""
    with _open_database(config) as database:
        if dry_run:
            _print_status(database)
            return
        copy = database.upgrade(backup)
        if copy is not None:
            print(f"a copy of what was is in {copy}")
        print(f"the database is at revision {database.schema_state().found}")


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
    config: options.Config = None,
) -> None:
    """Copy the server's own files, also while it runs.

    They are SQLite's database, the spool, the pepper, the operator's key, knowledge tables and adapters.
    Keep the copy secret. It does not contain a PostgreSQL database: use pg_dump."""
    with _open_database(config) as database:
        from antiphon.store.backup import write_backup

        manifest = write_backup(_find_files(config, database), folder)
        print(f"{len(manifest.files)} files are in {folder}")
        if database.file is None:
            note(f"{database.shown} is not in it: copy it with pg_dump, see docs/backup.md")


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="The folder that `antiphon store backup` made.")],
    config: options.Config = None,
) -> None:
    """Restore a backup, before the server starts.

    Existing files are not overwritten. Give the environment and the options of the next `antiphon serve`,
    because the files go where it looks for them. Keys that were revoked after the backup are valid again.
    """
    with report_errors():
        from antiphon.store.backup import read_manifest, restore_backup
        from antiphon.store.database import knows_revision

        manifest = read_manifest(folder)
        if manifest.has_database and manifest.revision and not knows_revision(manifest.revision):
            raise StoreRefused(
                f"{folder} is of a later version of Antiphon ({manifest.version}): run that one"
            )
        config = _find_settings(config, folder, manifest)
    with _open_database(config) as database:
        if manifest.has_database and database.file is None:
            raise StoreRefused(f"{folder} has a SQLite database, and the settings name {database.shown}")
        restore_backup(folder, manifest, _find_files(config, database))
        print(f"{len(manifest.files)} files were restored")
        if not manifest.has_database:
            note("the backup has no database: restore PostgreSQL's with pg_restore, see docs/backup.md")
        if (database.file is None or database.file.exists()) and not _print_status(database):
            note("antiphon store upgrade brings it up to date")


@app.command("admin-key")
def admin_key(
    config: options.Config = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write it into. [admin.key in ANTIPHON_HOME]")
    ] = None,
) -> None:
    """Create another operator's key if the others are lost. Running servers accept it at once."""
    with report_errors():
        from antiphon.cli.bootstrap import find_pepper, find_store_url, make_admin, make_home, open_database
        from antiphon.cli.serve_options import ServeOptions, find_home
        from antiphon.store.tenancy import SqlTenancy

        settings = ServeOptions(config=config).load_settings()
        home = find_home(os.environ, Path.home())
        with (
            make_home(home),
            closing(SqlTenancy(open_database(find_store_url(settings.keys.store, home)))) as tenancy,
        ):
            path = out or home / ADMIN_FILE
            if path.exists():
                raise StoreRefused(f"{path} is there already: move it away, or say another with --out")
            make_admin(tenancy, find_pepper(settings, home, tenancy), path, by=MAKER)


def _find_settings(config: Path | None, folder: Path, manifest: "Manifest") -> Path | None:
    """Finds the settings file that a server reads after a restore: the present one, or else the backup's."""
    from antiphon.cli.serve_options import HOME_VARIABLE, SETTINGS_FILE, ServeOptions

    name = f"home/{SETTINGS_FILE}"
    is_used = ServeOptions(config=config).find_file() is None and os.environ.get(HOME_VARIABLE)
    return folder / name if is_used and name in manifest.files else config


def _find_files(config: Path | None, database: "Database") -> "BackupSources":
    """Finds where the settings have the server's files."""
    from antiphon.cli.bootstrap import find_spool
    from antiphon.cli.commands.serve import place_knowledge
    from antiphon.cli.serve_options import ServeOptions, find_home
    from antiphon.store.backup import SPOOL, BackupSources
    from antiphon.weights.adapters.registry import get_default_registry

    settings = place_knowledge(ServeOptions(config=config).load_settings())
    home = find_home(os.environ, Path.home())
    adapters = settings.lora.registry or get_default_registry(os.environ, Path.home())
    parts = {
        SPOOL: Path(find_spool(settings.ledger.spool, home)),
        "knowledge": Path(settings.knowledge.directory or ""),
        "adapters": Path(adapters).expanduser().absolute(),
    }
    file = database.file
    revision = database.schema_state().found if file is None or file.exists() else None
    return BackupSources(file, revision, home, parts)


@contextmanager
def _open_database(config: Path | None) -> "Iterator[Database]":
    """Opens the database of the settings. An error ends the command."""
    with report_errors():
        from antiphon.cli.bootstrap import find_store_url
        from antiphon.cli.serve_options import ServeOptions, find_home
        from antiphon.store.database import Database

        home = find_home(os.environ, Path.home())
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(
            Database(find_store_url(ServeOptions(config=config).load_settings().keys.store, home))
        ) as database:
            yield database


def _print_status(database: "Database") -> bool:
    """Prints the schema's state. Returns whether it needs no upgrade."""
    standing = database.schema_state()
    print(f"database: {database.shown}")
    print(f"revision: {standing.found or 'none, it is empty'} (this version wants {standing.wanted})")
    for step in standing.pending:
        print(f"pending:  {step}")
    if standing.newer:
        print("a later version of Antiphon made it: run that one")
    return not (standing.newer or standing.pending)
