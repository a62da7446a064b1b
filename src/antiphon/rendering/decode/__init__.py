"""Converts the tokens of one choice to text: detokenizing, stop strings, counts."""
