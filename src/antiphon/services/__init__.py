"""What callers manage by the API: projects, users, keys, limits, prices, usage, recorded requests and
knowledge tables."""
