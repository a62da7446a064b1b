"""Layouts of the KV cache: one pool of cells for all sequences (`pool`), or a stream for each (`streams`).

A layout decides and counts. It orders changes, which the decode loop carries out.
"""
