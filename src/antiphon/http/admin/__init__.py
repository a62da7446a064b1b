"""The admin API under /admin/v1. Each module contains one resource: its wire types, handlers and
endpoints."""
