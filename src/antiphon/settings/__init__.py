"""Every setting is declared once, with its type, default, environment variable and meaning.

`schema` has the whole tree. `loading` reads it from flags, environment variables and `antiphon.toml`.
"""
