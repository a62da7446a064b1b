"""Before a server with keys starts: its database is opened or refused, its pepper found or made, the
operator's first key made. Imported only where keys are on."""

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from antiphon.auth.secrets import Pepper, given_pepper, kept_pepper, new_key, prefix_of, write_secret
from antiphon.cli.home import ADMIN_FILE, home_of
from antiphon.domain.tenancy import Key, KeyKind
from antiphon.errors import Conflict, StoreRefused
from antiphon.settings import Settings, with_keys
from antiphon.store.base import By, KeptKey, Tenancy
from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy

STORE_FILE = "antiphon.db"
MARK = "pepper"
BOOT = "antiphon serve"
"""Who the audit says made the first key."""


def store_url(said: str | None, home: Path) -> str:
    """The database of the settings, or the one that lies in the home."""
    return said or f"sqlite:///{(home / STORE_FILE).absolute()}"


def opened(settings: Settings, environ: Mapping[str, str], user_home: Path) -> Settings:
    """The settings with the database's address and the pepper in them. Raises StoreRefused and
    StoreUnavailable."""
    home = home_of(environ, user_home)
    url = store_url(settings.keys.store, home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = Database(url)
    with closing(SqlTenancy(database)) as tenancy:
        database.ready()
        mark = tenancy.mark(MARK)
        said = settings.keys.pepper
        pepper = given_pepper(said) if said else kept_pepper(home, make=mark is None)
        _require_mark(tenancy, pepper, mark)
        if not any(kept.key.kind is KeyKind.ADMIN for kept in tenancy.directory().keys):
            _make_admin(tenancy, pepper, home / ADMIN_FILE)
    return with_keys(settings, url, said or (home / "pepper").read_text(encoding="ascii").strip())


def _require_mark(tenancy: Tenancy, pepper: Pepper, mark: str | None) -> None:
    """The database knows whose pepper its keys are made with; a new one is told."""
    if mark is None:
        try:
            tenancy.set_mark(MARK, pepper.mark)
        except Conflict:  # another node was first
            mark = tenancy.mark(MARK)
    if mark is not None and mark != pepper.mark:
        raise StoreRefused(
            "the pepper is not the one that this database's keys were made with: take the one of the node "
            "that made them (the file pepper, or ANTIPHON_PEPPER)"
        )


def _make_admin(tenancy: Tenancy, pepper: Pepper, path: Path) -> None:
    """Writes the operator's first key into a file, and says where; never the key."""
    secret, now = new_key(), int(time.time())
    try:
        write_secret(path, secret)
    except FileExistsError:
        raise StoreRefused(
            f"the database has no operator's key, and {path} is there already: it is another database's; "
            "move it away and start again"
        ) from None
    key = Key(f"key_{prefix_of(secret)[3:]}", KeyKind.ADMIN, prefix_of(secret), now, BOOT)
    tenancy.add_key(KeptKey(key, pepper.digest(secret)), By(BOOT, now))
    print(f"antiphon: the operator's key was made; it is in {path}", file=sys.stderr)
