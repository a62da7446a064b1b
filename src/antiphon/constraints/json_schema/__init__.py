"""JSON Schemas of every draft: read, and written again in the keywords that the compiler keeps.

`reader` reads one schema by the rules of its draft (`keywords`, `assertions`) and follows its references
(`references`). `lowering` writes the keywords that the compiler lacks in those that it has, with `objects`,
`negation` and `disjointness`; its `normalize_schema` does both. Nothing here compiles, and all of it is
bounded, because the server reads schemas while it decodes a request.
"""
