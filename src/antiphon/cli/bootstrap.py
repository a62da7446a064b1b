"""Prepares the database, the pepper and the operator's first key before a server with keys starts.

Import it only if keys are enabled.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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
from antiphon.domain.tenancy import DEFAULT_PROJECT, Key, KeyKind, Project
from antiphon.errors import Conflict, KnowledgeUnavailable, SettingsError, StoreRefused
from antiphon.settings.loading import suggest_nearest
from antiphon.settings.schema import Settings, replace_group_rules, replace_keys
from antiphon.settings.tenancy import split_group_rule
from antiphon.store.base import ChangeAuthor, StoredKey, TenancyStore
from antiphon.store.database import Database
from antiphon.store.tenancy import SqlTenancy

STORE_FILE = "antiphon.db"
SPOOL = "spool"
MARK_NAME = "pepper"
"""The name under which the database stores the pepper's mark, a digest that identifies the pepper."""
SERVE_AUTHOR = "antiphon serve"
"""The author of the operator's first key in the audit log."""


def find_store_url(configured: str | None, home: Path) -> str:
    """Returns the configured database URL, or the URL of the database file in the home directory."""
    path = str((home / STORE_FILE).absolute()).replace("%", "%25").replace("?", "%3F")
    return configured or f"sqlite:///{path}"


def bootstrap_store(settings: Settings, environ: Mapping[str, str], user_home: Path) -> Settings:
    """Prepares the store. Returns the settings with the store's URL, the pepper, the spool directory, and ids
    of projects in the rules of groups.

    Raises StoreRefused and StoreUnavailable, and SettingsError for an unknown project.
    """
    home = find_home(environ, user_home)
    url = find_store_url(settings.keys.store, home)
    if settings.knowledge.storage == "database":
        prepare_knowledge_database(url)
    with create_home(home), closing(SqlTenancy(open_database(url))) as tenancy:
        directory = tenancy.load_directory()
        settings = resolve_group_projects(settings, directory.projects)
        pepper = find_pepper(settings, home, tenancy)
        operator_keys = [
            stored_key.key for stored_key in directory.keys if stored_key.key.kind is KeyKind.ADMIN
        ]
        path = home / ADMIN_FILE
        _complete_pending_key(path, tenancy, pepper)
        if not any(is_valid(key, time.time()) for key in operator_keys):
            if operator_keys and path.exists():
                path.replace(path.with_name(f"{ADMIN_FILE}.ended"))
            create_operator_key(tenancy, pepper, path)
        pepper_text = settings.keys.pepper or (home / PEPPER_FILE).read_text(encoding="ascii").strip()
    return replace_keys(settings, url, pepper_text, find_spool(settings.ledger.spool, home))


def resolve_group_projects(settings: Settings, projects: Sequence[Project]) -> Settings:
    """Returns the settings with the project's id in each rule of `oidc.groups`. A rule names a project by its
    id or its name. Raises SettingsError for an unknown project."""
    ids = {project.name: project.id for project in projects} | {
        project.id: project.id for project in projects
    }
    ids[DEFAULT_PROJECT] = DEFAULT_PROJECT  # before the first start, no project is in the store
    rules = []
    for group, project, role in map(split_group_rule, settings.oidc.groups):
        if project not in ids:
            raise SettingsError(
                f"oidc.groups (ANTIPHON_OIDC_GROUPS) names the unknown project {project!r}; use a project's "
                "id or name, or start without this rule and create the project: antiphon projects create "
                f"NAME{suggest_nearest(project, ids)}"
            )
        rules.append(f"{group}={ids[project]}:{role}")
    return replace_group_rules(settings, rules)


def find_spool(configured: str | None, home: Path) -> str:
    """Returns the configured spool directory, or the one in the home directory."""
    return str(Path(configured or home / SPOOL).absolute())


def open_database(url: str) -> Database:
    """Opens the database and creates missing tables. Raises StoreRefused and StoreUnavailable."""
    database = Database(url)
    database.prepare()
    return database


def prepare_knowledge_database(url: str) -> None:
    """Creates the schema of knowledge tables in PostgreSQL. Raises StoreRefused if the database has no
    support for it."""
    from antiphon.retrieval.postgres.database import KnowledgeDatabase
    from antiphon.retrieval.postgres.schema import prepare_schema

    with closing(Database(url)) as database:
        try:
            KnowledgeDatabase(database).write(prepare_schema)
        except KnowledgeUnavailable as error:
            raise StoreRefused(error.message) from None


@contextmanager
def create_home(home: Path) -> Iterator[None]:
    """Creates the home directory if it is missing. Raises StoreRefused if it cannot be written."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except OSError as problem:
        raise StoreRefused(f"{home} cannot be written: {problem.strerror}; set ANTIPHON_HOME") from None


def is_valid(key: Key, now: float) -> bool:
    """Whether a key is neither revoked nor expired."""
    return key.revoked is None and (key.expires is None or key.expires > now)


def find_pepper(settings: Settings, home: Path, tenancy: TenancyStore) -> Pepper:
    """Returns the configured pepper, or the pepper in the home directory. Raises StoreRefused if the database
    uses another pepper."""
    mark, configured = tenancy.load_mark(MARK_NAME), settings.keys.pepper
    pepper = parse_pepper(configured) if configured else load_pepper(home, create=mark is None)
    _require_mark(tenancy, pepper, mark)
    return pepper


def _require_mark(tenancy: TenancyStore, pepper: Pepper, mark: str | None) -> None:
    """Raises StoreRefused if the database has the mark of another pepper. Stores the mark if it has none.

    `mark`: the mark in the database; None for a new database.
    """
    if mark is None:
        try:
            tenancy.create_mark(MARK_NAME, pepper.mark)
        except Conflict:  # another node was first
            mark = tenancy.load_mark(MARK_NAME)
    if mark is not None and mark != pepper.mark:
        raise StoreRefused(
            "the keys of this database were made with another pepper. Use the pepper of the node that made "
            "them (its file pepper, or ANTIPHON_PEPPER)"
        )


def create_operator_key(
    tenancy: TenancyStore, pepper: Pepper, path: Path, author: str = SERVE_AUTHOR
) -> None:
    """Writes a new operator's key to a file and prints the path, never the key.

    `author`: the name in the audit log. The next start finishes an interrupted creation.
    """
    if path.exists():
        raise StoreRefused(f"{describe_foreign_key(path)}: move the file elsewhere")
    secret, now = generate_key(), int(time.time())
    pending_file = path.with_name(f"{path.name}.new")
    pending_file.unlink(missing_ok=True)
    write_secret(pending_file, secret)
    key = Key(f"key_{extract_prefix(secret)[3:]}", KeyKind.ADMIN, extract_prefix(secret), now, author)
    tenancy.add_key(StoredKey(key, pepper.digest(secret)), ChangeAuthor(author, now))
    _complete_pending_key(path, tenancy, pepper)
    print(f"antiphon: the operator's key was made; it is in {path}", file=sys.stderr)


def describe_foreign_key(path: Path) -> str:
    """Describes an operator's file whose key is not in the database."""
    return f"{path} exists already, and its key is not in this database"


def _complete_pending_key(path: Path, tenancy: TenancyStore, pepper: Pepper) -> None:
    """Renames a pending key's file if the database has the key. Otherwise removes the file."""
    pending_file = path.with_name(f"{path.name}.new")
    if not pending_file.exists():
        return
    digest = pepper.digest(pending_file.read_text(encoding="ascii").strip())
    if any(stored_key.digest == digest for stored_key in tenancy.load_directory().keys):
        pending_file.replace(path)
    else:
        pending_file.unlink()
