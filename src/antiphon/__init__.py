"""Antiphon: one self-hosted, honest server for chat and text completions.

This module holds the version and nothing else; importing it does nothing.
"""

__version__ = "0.1.0.dev0"
