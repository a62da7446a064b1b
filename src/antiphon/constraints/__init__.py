"""Constraints: from what a caller wrote to a grammar that compiles and gives masks in time, and the masks.

`constraint_sources` writes the compiler's text of a constraint, with `json_schema`, `regexes` and
`call_grammar`, which name what cannot be kept. `matching` is the compiler with its limits. `checker` and
`checking_process` are the two sides of the process that tries a grammar before anything is admitted. `guide`
follows one sequence, on the threads of `mask_workers`. `key_guard` keeps apart the keys of JSON, which no
grammar can.
"""
