"""Projects, users, memberships and keys over HTTP, under /admin/v1."""
