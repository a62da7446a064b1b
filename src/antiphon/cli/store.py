"""`antiphon store`: where the database stands, and bringing it up to date."""

import os
import sys
from contextlib import closing
from pathlib import Path

from antiphon.cli.asked import Asked
from antiphon.cli.home import ADMIN_FILE, home_of
from antiphon.cli.keyed import make_admin, pepper_of, ready, store_url, writable
from antiphon.errors import AntiphonError, StoreRefused
from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy

MAKER = "antiphon store admin-key"
"""Who the audit says made a key on the machine itself."""


def status(asked: Asked) -> int:
    """Prints where it stands; returns the process's exit status: 0 only where nothing is to be done."""
    try:
        database = _database(asked)
        with closing(database):
            standing = database.standing()
    except AntiphonError as error:
        return _failed(error)
    print(f"database: {database.shown}")
    print(f"revision: {standing.found or 'none, it is empty'} (this version wants {standing.wanted})")
    for step in standing.pending:
        print(f"pending:  {step}")
    if standing.newer:
        print("a later version of Antiphon made it: run that one")
    return 1 if standing.newer or standing.pending else 0


def upgrade(asked: Asked, backup: Path | None, dry_run: bool) -> int:
    """Applies what is pending; returns the process's exit status."""
    if dry_run:
        status(asked)
        return 0
    try:
        with closing(_database(asked)) as database:
            copy = database.upgrade(backup)
            standing = database.standing()
    except AntiphonError as error:
        return _failed(error)
    if copy is not None:
        print(f"a copy of what was is in {copy}")
    print(f"the database is at revision {standing.found}")
    return 0


def admin_key(asked: Asked, out: Path | None) -> int:
    """Makes another operator's key, for whoever may write this machine's files; a running server accepts it
    within a second."""
    try:
        settings = asked.settings()
        home = home_of(os.environ, Path.home())
        with writable(home), closing(SqlTenancy(ready(store_url(settings.keys.store, home)))) as tenancy:
            path = out or home / ADMIN_FILE
            if path.exists():
                raise StoreRefused(f"{path} is there already: move it away, or say another with --out")
            make_admin(tenancy, pepper_of(settings, home, tenancy), path, by=MAKER)
    except AntiphonError as error:
        return _failed(error)
    return 0


def _database(asked: Asked) -> Database:
    home = home_of(os.environ, Path.home())
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Database(store_url(asked.settings().keys.store, home))


def _failed(error: AntiphonError) -> int:
    print(f"antiphon: {error.message}", file=sys.stderr)
    return 1
