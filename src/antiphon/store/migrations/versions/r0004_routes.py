"""The routes that a generation tried."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column to the ledger. Earlier rows name no routes."""
    op.add_column("ledger", sa.Column("routes", sa.Text, nullable=False, server_default=""))
