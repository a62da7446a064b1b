"""From the tokens of one choice to its text: detokenizing, stop strings, counts."""
