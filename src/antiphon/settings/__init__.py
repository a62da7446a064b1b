"""Every setting, declared once: its type, default, environment variable and meaning.

`schema` has the whole tree, `loading` reads it from flags, environment variables and `antiphon.toml`.
"""
