"""The families of keys that were rotated."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column. Keys that were rotated before this version keep separate limits."""
    op.add_column("keys", sa.Column("family", sa.String(64)))
