"""The kept responses."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("previous", sa.String(64)),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("output", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_responses"),
    )
    op.create_index(
        "ix_responses_project_responses_created_responses_id", "responses", ["project", "created", "id"]
    )
    op.create_index("ix_responses_expires", "responses", ["expires"])
    op.create_table(
        "response_items",
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("item", sa.String(128), nullable=False),
        sa.Column("response", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(
            ["response"], ["responses.id"], name="fk_response_items_response", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project", "item", "response", name="pk_response_items"),
    )
    op.create_index("ix_response_items_response", "response_items", ["response"])
    op.create_table(
        "response_totals",
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project", name="pk_response_totals"),
    )
