"""Limits, prices, the ledger, logged requests, and the directory's revision."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID = sa.String(64)


def upgrade() -> None:
    """Creates the tables. Existing rows stay as they are."""
    op.add_column("projects", sa.Column("logging", sa.Text))
    op.add_column("audit", sa.Column("revision", sa.BigInteger))
    op.create_index("ix_audit_revision", "audit", ["revision"])
    revisions = op.create_table(
        "revision",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_revision"),
    )
    op.bulk_insert(revisions, [{"id": 1, "number": 1}])
    _create_limits()
    _create_prices()
    _create_ledger()
    _create_requests_logged()


def _create_limits() -> None:
    op.create_table(
        "limits",
        sa.Column("id", ID, nullable=False),
        sa.Column("subject", sa.String(16), nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("measure", sa.String(16), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("window", sa.String(16)),
        sa.Column("models", sa.Text),
        sa.Column("note", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_limits"),
    )


def _create_prices() -> None:
    op.create_table(
        "prices",
        sa.Column("id", ID, nullable=False),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("currency", sa.String(16), nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("input", sa.BigInteger, nullable=False),
        sa.Column("output", sa.BigInteger, nullable=False),
        sa.Column("cached", sa.BigInteger),
        sa.Column("request", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_prices"),
    )


def _create_ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("id", ID, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("user", sa.Text),
        sa.Column("dialect", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("asked", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("adapter", sa.Text),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("price", sa.Text),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("queue_ms", sa.BigInteger),
        sa.Column("ttft_ms", sa.BigInteger),
        sa.Column("total_ms", sa.BigInteger),
        sa.Column("end_user", sa.Text),
        sa.Column("parent", sa.Text),
        sa.Column("tags", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger"),
    )
    op.create_index("ix_ledger_at", "ledger", ["at"])
    op.create_index("ix_ledger_project_ledger_at", "ledger", ["project", "at"])
    op.create_index("ix_ledger_key_ledger_at", "ledger", ["key", "at"])
    op.create_index("ix_ledger_user_ledger_at", "ledger", ["user", "at"])
    op.create_index("ix_ledger_model_ledger_at", "ledger", ["model", "at"])


def _create_requests_logged() -> None:
    op.create_table(
        "requests_logged",
        sa.Column("id", ID, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_requests_logged"),
    )
    op.create_index("ix_requests_logged_project_requests_logged_at", "requests_logged", ["project", "at"])
    op.create_index("ix_requests_logged_expires", "requests_logged", ["expires"])
