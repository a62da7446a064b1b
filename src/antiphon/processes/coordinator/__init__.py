"""Shared state of the HTTP processes of one server: limits, adapter names, directory revisions, metrics.

The coordinator also drains the spool. With several HTTP processes it is a process of its own; with one it
runs inside that process.
"""
