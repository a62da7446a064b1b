"""Layouts of the KV cache: one pool of cells for all sequences (`layout`), or a stream of cells for each
sequence (`streams`).

A layout decides which sequence uses which cells, and counts the cells. It lists changes of the cache, which
the decode loop carries out.
"""
