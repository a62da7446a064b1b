"""Vendors' models as engines: one HTTP client, and one upstream dialect for each wire format."""
