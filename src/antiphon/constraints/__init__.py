"""Constraints: from what a caller wrote to a grammar that is proved to compile and to give a mask in time.

`grammars` makes the compiler's text from a constraint, with `json_schema` and `regexes` naming what
would not be kept; `matching` is the compiler with its limits; `checker` and `checking` are the two sides of
the process that tries a grammar before anything is admitted. What no grammar can say of the keys of JSON is
kept by `key_guard`, beside the mask.
"""
