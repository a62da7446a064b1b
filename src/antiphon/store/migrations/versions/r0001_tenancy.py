"""Projects, users, memberships, keys, audit, marks."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.String(64)
SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Creates the tables and the project `default`."""
    projects = op.create_table(
        "projects",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("archived", sa.BigInteger),
        sa.Column("note", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
        sa.UniqueConstraint("name", name="uq_projects_name"),
    )
    op.bulk_insert(projects, [{"id": "default", "name": "default", "created": 0, "note": ""}])
    op.create_table(
        "users",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("email", sa.String(320)),
        sa.Column("disabled", sa.BigInteger),
        sa.Column("note", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("email", name="uq_users_email"),
    )
    op.create_table(
        "memberships",
        sa.Column("project", ID, nullable=False),
        sa.Column("user", ID, nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", "user", name="pk_memberships"),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_memberships_project"),
        sa.ForeignKeyConstraint(["user"], ["users.id"], name="fk_memberships_user"),
    )
    _create_keys()
    _create_audit()
    op.create_table(
        "marks",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_marks"),
    )


def _create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("prefix", sa.String(32), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("creator", sa.String(200), nullable=False),
        sa.Column("project", ID),
        sa.Column("user", ID),
        sa.Column("models", sa.Text),
        sa.Column("endpoints", sa.Text),
        sa.Column("expires", sa.BigInteger),
        sa.Column("revoked", sa.BigInteger),
        sa.Column("note", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_keys_project"),
        sa.ForeignKeyConstraint(["user"], ["users.id"], name="fk_keys_user"),
    )
    op.create_index("ix_keys_project", "keys", ["project"])
    op.create_index("ix_keys_user", "keys", ["user"])


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", SERIAL, nullable=False, autoincrement=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("target", sa.String(200), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_target", "audit", ["target"])
