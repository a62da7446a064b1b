"""Constraints: from what a caller wrote to a grammar that is proved to compile and to give a mask in time.

`grammars` makes the compiler's text from a constraint, with `schemas` and `regexes` refusing by name what
would not be kept; `matching` is the compiler with its limits; `checker` and `checking` are the two sides of
the process that tries a grammar before anything is admitted.
"""
