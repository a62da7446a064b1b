"""The current tables. Times are Unix seconds, except in the ledger and in `requests_logged`, where they are
Unix milliseconds. Callers create the ids; an id is never reused."""

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

from antiphon.domain.stored_responses import LONGEST_ID

NAMES = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""The names of constraints. They are the same in every database, so that migrations can refer to them."""

metadata = MetaData(naming_convention=NAMES)

ID = String(64)
SERIAL = BigInteger().with_variant(Integer, "sqlite")
"""In SQLite, only a column of the type INTEGER gets increasing ids."""

projects = Table(
    "projects",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("created", BigInteger, nullable=False),
    Column("archived", BigInteger),
    Column("note", Text, nullable=False),
    Column("logging", Text),
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
    Column("family", ID),
    Index(None, "project"),
    Index(None, "user"),
)
"""`family` is NULL for a key that does not succeed another."""

marks = Table(
    "marks",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""Properties of the whole database, such as the digest of the pepper."""

audit = Table(
    "audit",
    metadata,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(64), nullable=False),
    Column("target", String(200), nullable=False),
    Column("detail", Text, nullable=False),
    Column("revision", BigInteger),
    Column("client", String(64)),
    Index(None, "target"),
    Index(None, "revision"),
)

revision = Table(
    "revision",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)
"""One row with the revision of the directory. Each change of the directory increments it in the same
transaction. A change of marks does not."""

limits = Table(
    "limits",
    metadata,
    Column("id", ID, primary_key=True),
    Column("subject", String(16), nullable=False),
    Column("target", Text, nullable=False),
    Column("measure", String(16), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("window", String(16)),
    Column("models", Text),
    Column("note", Text, nullable=False),
)

budget_warnings = Table(
    "budget_warnings",
    metadata,
    Column("limit", ID, primary_key=True),
    Column("period", BigInteger, primary_key=True),
    Column("share", String(16), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Index(None, "at"),
)
"""`period` is the start of the window."""

prices = Table(
    "prices",
    metadata,
    Column("id", ID, primary_key=True),
    Column("models", Text, nullable=False),
    Column("currency", String(16), nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("input", BigInteger, nullable=False),
    Column("output", BigInteger, nullable=False),
    Column("cached", BigInteger),
    Column("request", BigInteger, nullable=False),
    Column("until", BigInteger),
    Column("created", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
)

ledger = Table(
    "ledger",
    metadata,
    Column("id", ID, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("project", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("user", Text),
    Column("dialect", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("adapter", Text),
    Column("engine", Text, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("source", String(16), nullable=False),
    Column("price", Text),
    Column("cost", BigInteger, nullable=False),
    Column("currency", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("queue_ms", BigInteger),
    Column("ttft_ms", BigInteger),
    Column("total_ms", BigInteger),
    Column("end_user", Text),
    Column("parent", Text),
    Column("tags", Text, nullable=False),
    Column("routes", Text, nullable=False, server_default=""),
    Index(None, "at"),
    Index(None, "project", "at"),
    Index(None, "key", "at"),
    Index(None, "user", "at"),
    Index(None, "model", "at"),
)
"""Texts can have any length and there are no foreign keys, so every entry can be inserted. `tags` and
`routes` are JSON."""

requests_logged = Table(
    "requests_logged",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("request", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Index(None, "project", "at"),
    Index(None, "expires"),
)
"""Requests of projects that record them. An id is the id of the ledger's entry. `expires` is in seconds."""

summaries = Table(
    "summaries",
    metadata,
    Column("project", ID, primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("text", Text, nullable=False),
    Index(None, "project", "at"),
    Index(None, "expires"),
)
"""Summaries of the older turns of conversations. `at` is in milliseconds, `expires` in seconds."""

responses = Table(
    "responses",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project", ID, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("previous", ID),
    Column("size", BigInteger, nullable=False),
    Column("input", LargeBinary, nullable=False),
    Column("output", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index(None, "project", "created", "id"),
    Index(None, "expires"),
)
"""Kept responses. `input` and `output` are JSON arrays of items. `body` is the response without its
output."""

response_items = Table(
    "response_items",
    metadata,
    Column("project", ID, primary_key=True),
    Column("item", String(LONGEST_ID), primary_key=True),
    Column("response", ID, ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, nullable=False),
    Index(None, "response"),
)
"""Where an item is, by its id: the position among the items of `input` and then of `output`."""

response_totals = Table(
    "response_totals",
    metadata,
    Column("project", ID, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
)
"""The sum of `size` of each project's responses. Whoever changes responses of a project first locks its
row."""
