"""The address of the client in the audit."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds a column to the audit. Earlier entries name no client."""
    op.add_column("audit", sa.Column("client", sa.String(64)))
