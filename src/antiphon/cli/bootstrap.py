"""Prepares the database, the pepper and the operator's first key before a server with keys starts. Import it
only where keys are on."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from antiphon.auth.secrets import (
    PEPPER_FILE,
    Pepper,
    extract_prefix,
    generate_key,
    load_pepper,
    parse_pepper,
    write_secret,
)
from antiphon.cli.admin_client import ADMIN_FILE
from antiphon.cli.serve_options import find_home
from antiphon.domain.tenancy import Key, KeyKind
from antiphon.errors import Conflict, KnowledgeUnavailable, StoreRefused
from antiphon.settings.schema import Settings, replace_keys
from antiphon.store.base import ChangeAuthor, StoredKey, TenancyStore
from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy

STORE_FILE = "antiphon.db"
SPOOL = "spool"
MARK = "pepper"
BOOT = "antiphon serve"
"""The author of the first key in the audit."""


def find_store_url(configured: str | None, home: Path) -> str:
    """The database URL of the settings, or of the file in the home, with special characters escaped."""
    path = str((home / STORE_FILE).absolute()).replace("%", "%25").replace("?", "%3F")
    return configured or f"sqlite:///{path}"


def bootstrap_store(settings: Settings, environ: Mapping[str, str], user_home: Path) -> Settings:
    """Prepares the store; returns the settings with its URL, the pepper and the spool.

    Raises StoreRefused and StoreUnavailable.
    """
    home = find_home(environ, user_home)
    url = find_store_url(settings.keys.store, home)
    if settings.knowledge.storage == "database":
        require_knowledge_database(url)
    with make_home(home), closing(SqlTenancy(open_database(url))) as tenancy:
        pepper = find_pepper(settings, home, tenancy)
        keys = [
            stored_key.key for stored_key in tenancy.directory().keys if stored_key.key.kind is KeyKind.ADMIN
        ]
        path = home / ADMIN_FILE
        _settle_pending_key(path, tenancy, pepper)
        if not any(is_valid(key, time.time()) for key in keys):
            if keys and path.exists():
                path.replace(path.with_name(f"{ADMIN_FILE}.ended"))
            make_admin(tenancy, pepper, path)
        pepper_text = settings.keys.pepper or (home / PEPPER_FILE).read_text(encoding="ascii").strip()
    return replace_keys(settings, url, pepper_text, find_spool(settings.ledger.spool, home))


def find_spool(configured: str | None, home: Path) -> str:
    """The spool of the settings, or the one in the home."""
    return str(Path(configured or home / SPOOL).absolute())


def open_database(url: str) -> Database:
    """Opens the database with its tables. Raises StoreRefused and StoreUnavailable."""
    database = Database(url)
    database.prepare()
    return database


def require_knowledge_database(url: str) -> None:
    """Makes the schema of knowledge tables in PostgreSQL. Raises StoreRefused where it cannot have one."""
    from antiphon.retrieval.postgres.database import KnowledgeDatabase
    from antiphon.retrieval.postgres.schema import prepare_schema

    with closing(Database(url)) as database:
        try:
            KnowledgeDatabase(database).write(prepare_schema)
        except KnowledgeUnavailable as error:
            raise StoreRefused(error.message) from None


@contextmanager
def make_home(home: Path) -> Iterator[None]:
    """Makes the home directory if it is missing. Raises StoreRefused where it cannot be written."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except OSError as problem:
        raise StoreRefused(f"{home} cannot be written: {problem.strerror}; set ANTIPHON_HOME") from None


def is_valid(key: Key, now: float) -> bool:
    """Whether a key has not ended."""
    return key.revoked is None and (key.expires is None or key.expires > now)


def find_pepper(settings: Settings, home: Path, tenancy: TenancyStore) -> Pepper:
    """The pepper of the settings or of the home. It must be the database's."""
    mark, configured = tenancy.mark(MARK), settings.keys.pepper
    pepper = parse_pepper(configured) if configured else load_pepper(home, make=mark is None)
    _require_mark(tenancy, pepper, mark)
    return pepper


def _require_mark(tenancy: TenancyStore, pepper: Pepper, mark: str | None) -> None:
    """Requires the database's mark to match the pepper, and writes the mark of a new database."""
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


def make_admin(tenancy: TenancyStore, pepper: Pepper, path: Path, by: str = BOOT) -> None:
    """Makes an operator's key in a file and prints the path, never the key. `by`: the author in the audit.

    The next start finishes an interrupted one.
    """
    if path.exists():
        raise StoreRefused(f"{path} is there already, and holds no key of this database: move it away")
    secret, now = generate_key(), int(time.time())
    pending_file = path.with_name(f"{path.name}.new")
    pending_file.unlink(missing_ok=True)
    write_secret(pending_file, secret)
    key = Key(f"key_{extract_prefix(secret)[3:]}", KeyKind.ADMIN, extract_prefix(secret), now, by)
    tenancy.add_key(StoredKey(key, pepper.digest(secret)), ChangeAuthor(by, now))
    _settle_pending_key(path, tenancy, pepper)
    print(f"antiphon: the operator's key was made; it is in {path}", file=sys.stderr)


def _settle_pending_key(path: Path, tenancy: TenancyStore, pepper: Pepper) -> None:
    """Moves a pending key into place if the database has it; otherwise removes it."""
    pending_file = path.with_name(f"{path.name}.new")
    if not pending_file.exists():
        return
    digest = pepper.digest(pending_file.read_text(encoding="ascii").strip())
    if any(stored_key.digest == digest for stored_key in tenancy.directory().keys):
        pending_file.replace(path)
    else:
        pending_file.unlink()
