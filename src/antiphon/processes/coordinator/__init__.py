"""Shared state of the HTTP processes of one server: limits, adapter names, directory revisions, metrics.

The coordinator also drains the spool. With several HTTP processes it has a separate process; with one it runs
inside that process.
"""
