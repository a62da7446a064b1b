"""Constraints: from a caller's source to a grammar that compiles and gives masks in time, and the masks.

`grammar_builder` writes a constraint's grammar for the compiler, with `json_schema`, `regexes` and
`compiler_grammar`, which report unsupported parts. `matching` is the compiler with its limits. `checker` and
`checking_process` are the two sides of the process that tests a grammar before a request is admitted. `guide`
follows one sequence, on the threads of `mask_workers`. `key_guard` keeps JSON keys unique, which no grammar
can.
"""
