"""What the HTTP processes of one server agree on, counted and kept in one place.

That is limits, the drain of the spool, names of adapters, revisions of the directory and sums of metrics.

With several HTTP processes the coordinator is a process of its own; with one it runs inside that process.
"""
