"""The tables as they are now. Times are Unix seconds; ids are made by the caller and never used again."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

NAMES = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names of constraints, so that a migration can speak of them on every database."""

metadata = MetaData(naming_convention=NAMES)

ID = String(64)
SERIAL = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up by itself only what it calls INTEGER."""

projects = Table(
    "projects",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("created", BigInteger, nullable=False),
    Column("archived", BigInteger),
    Column("note", Text, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", String(200), nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("email", String(320), unique=True),
    Column("disabled", BigInteger),
    Column("note", Text, nullable=False),
)

memberships = Table(
    "memberships",
    metadata,
    Column("project", ID, ForeignKey("projects.id"), primary_key=True),
    Column("user", ID, ForeignKey("users.id"), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("created", BigInteger, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", ID, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("prefix", String(32), nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("creator", String(200), nullable=False),
    Column("project", ID, ForeignKey("projects.id")),
    Column("user", ID, ForeignKey("users.id")),
    Column("models", Text),
    Column("endpoints", Text),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
    Column("note", Text, nullable=False),
    Index(None, "project"),
    Index(None, "user"),
)

marks = Table(
    "marks",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(64), nullable=False),
    Column("target", String(200), nullable=False),
    Column("detail", Text, nullable=False),
    Index(None, "target"),
)
