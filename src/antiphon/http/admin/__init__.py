"""The admin API under /admin/v1: one module a resource, with its schema, handlers and endpoints."""
