"""Constraints: checks a caller's constraint, compiles it to a grammar, and computes the allowed tokens.

The compiler is the library llguidance. `grammar_builder` writes its input, the grammar of a constraint. It
uses `json_schema` and `regexes`. All report unsupported parts. `matching` has llguidance compile a grammar,
with limits. `key_guard` keeps JSON keys unique, because a grammar cannot do this.

A separate process tests each grammar before a request is admitted: `checker` runs in the server,
`checking_process` in the process. `guide` follows one sequence, on threads of its own.
"""
