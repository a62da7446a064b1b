"""Rewrites JSON Schemas of every draft in the keywords that the compiler supports.

`reader` reads one schema by the rules of its draft and follows its references, with `schemas`. `lowering`
replaces the keywords that the compiler lacks, with `objects` and `schema_logic`. `lowering.make_compilable`
does both, and refuses what the compiler would not enforce. This package compiles nothing. Its time is
limited, because the server reads schemas while it decodes a request.
"""
