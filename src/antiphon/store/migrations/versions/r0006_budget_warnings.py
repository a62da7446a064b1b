"""The budget warnings that were sent, so that each is sent once."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "budget_warnings",
        sa.Column("limit", sa.String(64), nullable=False),
        sa.Column("period", sa.BigInteger, nullable=False),
        sa.Column("share", sa.String(16), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("limit", "period", "share", name="pk_budget_warnings"),
    )
    op.create_index("ix_budget_warnings_at", "budget_warnings", ["at"])
