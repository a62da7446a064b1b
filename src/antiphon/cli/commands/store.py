"""`antiphon store`: the database's schema, backups of a server's files, and new operator's keys."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import console
from antiphon.cli.admin_client import ADMIN_FILE
from antiphon.cli.output import FAILED, note, report_errors
from antiphon.errors import StoreRefused

if TYPE_CHECKING:
    from antiphon.store.backup import BackupSources, Manifest
    from antiphon.store.database import Database

ADMIN_KEY_AUTHOR = "antiphon store admin-key"
"""The author of this command's key in the audit log."""

app = console.create_group("store", "The database of projects, users and keys.")


@app.command()
def status(config: console.Config = None) -> None:
    """Show the revision of the database's schema, and the steps of an upgrade."""
    with _open_database(config) as database:
        if not _print_status(database):
            raise typer.Exit(FAILED)


@app.command()
def upgrade(
    config: console.Config = None,
    backup: Annotated[
        Path | None, typer.Option(help="The file for a copy of the SQLite database. [beside the database]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the steps.")] = False,
) -> None:
    """Upgrade the database's schema to this version. All rows stay."""
    with _open_database(config) as database:
        if dry_run:
            _print_status(database)
            return
        copied_file = database.upgrade(backup)
        if copied_file is not None:
            print(f"a copy of the old database is in {copied_file}")
        print(f"the database is at revision {database.read_schema_state().found_revision}")


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(help="The folder to create.")],
    config: console.Config = None,
    dump: Annotated[
        bool, typer.Option("--dump", help="Also dump a PostgreSQL database, with pg_dump.")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(help="Afterwards remove the oldest backups beside it, and keep this many.", min=1),
    ] = None,
) -> None:
    """Copy the server's files, also while the server runs.

    The files are the SQLite database, the spool, the pepper, the operator's key, the knowledge tables and
    the adapters.
    Keep the copy secret. It contains a PostgreSQL database only with --dump."""
    with _open_database(config) as database:
        from antiphon.store.backup import remove_old_backups, write_backup

        sources = _find_backup_sources(config, database, dump)
        manifest = write_backup(sources, folder)
        print(f"copied {len(manifest.files)} files to {folder}")
        if database.file is None and not dump:
            note(f"{database.display_url} is not in the backup: --dump adds it, see docs/backup.md")
        if keep is not None:
            for removed in remove_old_backups(folder.absolute().parent, keep):
                print(f"removed the old backup {removed}")


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="A folder that `antiphon store backup` created.")],
    config: console.Config = None,
) -> None:
    """Restore the files of a backup. None of them may exist, and no server may run.

    Existing files are not overwritten. Give the environment and the options of the next `antiphon serve`,
    because the files go where it looks for them. Keys that were revoked after the backup are valid again.
    """
    with report_errors():
        from antiphon.store.backup import DUMP, read_manifest, restore_backup
        from antiphon.store.database import knows_revision

        manifest = read_manifest(folder)
        if manifest.has_database and manifest.revision and not knows_revision(manifest.revision):
            raise StoreRefused(
                f"{folder} comes from a later version of Antiphon ({manifest.version}): use that version"
            )
        config = _find_settings_file(config, folder, manifest)
    with _open_database(config) as database:
        if manifest.has_database and database.file is None:
            raise StoreRefused(
                f"{folder} has a SQLite database, but the settings name {database.display_url}"
            )
        restore_backup(folder, manifest, _find_backup_sources(config, database))
        print(f"{len(manifest.files)} files were restored")
        if DUMP in manifest.files:
            note(f"restore the database with pg_restore from {folder / DUMP}, see docs/backup.md")
        elif not manifest.has_database:
            note("the backup contains no database: restore PostgreSQL with pg_restore, see docs/backup.md")
        if (database.file is None or database.file.exists()) and not _print_status(database):
            note("antiphon store upgrade upgrades the database")


@app.command("admin-key")
def admin_key(
    config: console.Config = None,
    out: Annotated[
        Path | None, typer.Option(help="The file for the key. [admin.key in ANTIPHON_HOME]")
    ] = None,
) -> None:
    """Create another operator's key if the others are lost. Running servers accept it immediately."""
    with report_errors():
        from antiphon.cli.bootstrap import (
            create_home,
            create_operator_key,
            find_pepper,
            find_store_url,
            open_database,
        )
        from antiphon.cli.serve_options import ServeOptions, find_home
        from antiphon.store.tenancy import SqlTenancy

        settings = ServeOptions(config=config).load_settings()
        home = find_home(os.environ, Path.home())
        with (
            create_home(home),
            closing(SqlTenancy(open_database(find_store_url(settings.keys.store, home)))) as tenancy,
        ):
            path = out or home / ADMIN_FILE
            if path.exists():
                raise StoreRefused(
                    f"{path} exists already: move it elsewhere, or name another file with --out"
                )
            create_operator_key(tenancy, find_pepper(settings, home, tenancy), path, author=ADMIN_KEY_AUTHOR)


def _find_settings_file(config: Path | None, folder: Path, manifest: "Manifest") -> Path | None:
    """Returns the settings file for a server after a restore: the current file, or the backup's file if there
    is no current file."""
    from antiphon.cli.serve_options import HOME_VARIABLE, SETTINGS_FILE, ServeOptions

    name = f"home/{SETTINGS_FILE}"
    needs_backup_file = ServeOptions(config=config).find_file() is None and os.environ.get(HOME_VARIABLE)
    return folder / name if needs_backup_file and name in manifest.files else config


def _find_backup_sources(config: Path | None, database: "Database", dump: bool = False) -> "BackupSources":
    """Returns the paths of the server's files, and the revision of the database's schema. `dump`: whether the
    backup gets a dump of a PostgreSQL database."""
    from antiphon.cli.bootstrap import find_spool
    from antiphon.cli.commands.serve import resolve_knowledge_directory
    from antiphon.cli.serve_options import ServeOptions, find_home
    from antiphon.store.backup import SPOOL, BackupSources
    from antiphon.weights.adapter_store import get_default_registry

    settings = resolve_knowledge_directory(ServeOptions(config=config).load_settings())
    home = find_home(os.environ, Path.home())
    adapters = settings.lora.registry or get_default_registry(os.environ, Path.home())
    folders = {
        SPOOL: Path(find_spool(settings.ledger.spool, home)),
        "knowledge": Path(settings.knowledge.directory or ""),
        "adapters": Path(adapters).expanduser().absolute(),
    }
    file = database.file
    revision = database.read_schema_state().found_revision if file is None or file.exists() else None
    has_dump = dump and file is None
    return BackupSources(file, revision, home, folders, database.dump if has_dump else None)


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
    """Prints the state of the database's schema. Returns whether this version can use the schema as it is."""
    state = database.read_schema_state()
    print(f"database: {database.display_url}")
    revision = state.found_revision or "none, it is empty"
    print(f"revision: {revision} (this version needs {state.needed_revision})")
    for step in state.pending:
        print(f"pending:  {step}")
    if state.is_newer:
        print("a later version of Antiphon created this schema: use that version")
    return not (state.is_newer or state.pending)
