"""JSON Schemas of every draft: read, and written again in the keywords that the compiler keeps.

`reading` reads one schema by the rules of its draft (`drafts`) and finds what it refers to (`references`).
`lowering` writes the keywords that the compiler lacks in those that it has, with `negation` and
`disjointness`. `normalize` is both. Nothing here compiles, and all of it is bounded: the server reads schemas
while it decodes.
"""
