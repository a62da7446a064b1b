"""Constraints: from a caller's source to a grammar that compiles and gives masks in time, and the masks.

`constraint_sources` writes a constraint's grammar for the compiler. It uses `json_schema`, `regexes` and
`call_grammar`, which report unsupported parts. `matching` is the compiler with its limits. A separate process
tests each grammar before a request is admitted: `checker` is the server's side of it, `checking_process` the
other side. `guide` follows one sequence, on the threads of `mask_workers`. `key_guard` keeps JSON keys
unique, because a grammar cannot.
"""
