"""Constraints: checks a caller's constraint, compiles it to a grammar, and computes the allowed tokens.

`grammar_builder` writes the grammar of a constraint for the compiler. It uses `json_schema`, `regexes` and
`compiler_grammar`, which report unsupported parts. `matching` calls the compiler, with limits. A separate
process tests each grammar before a request is admitted: `checker` runs in the server, `checking_process` in
the process. `guide` follows one sequence, on the threads of `mask_workers`. `key_guard` keeps JSON keys
unique, because a grammar cannot do this.
"""
