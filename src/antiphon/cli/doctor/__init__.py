"""`antiphon doctor`: checks everything that `antiphon serve` needs, and changes nothing."""
