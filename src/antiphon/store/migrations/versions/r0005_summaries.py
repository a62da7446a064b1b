"""The summaries of conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "summaries",
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("project", "digest", name="pk_summaries"),
    )
    op.create_index("ix_summaries_project_summaries_at", "summaries", ["project", "at"])
    op.create_index("ix_summaries_expires", "summaries", ["expires"])
