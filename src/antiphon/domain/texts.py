"""What a name, a note and an email address may be made of, as patterns that JSON Schema, too, understands."""

CONTROLS = r"\x00-\x1f\x7f"
UNSEEN = (
    " \x80-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Blanks, and what is not drawn: two names that differ in these alone look alike, and one of them alone like
none."""

END_OF_TEXT = r"(?![\s\S])"
"""`$` would take a line break at the end."""

PLAIN_PATTERN = rf"^[^{CONTROLS}]+{END_OF_TEXT}"
NAME_PATTERN = rf"^[^{CONTROLS}]*[^{CONTROLS}{UNSEEN}][^{CONTROLS}]*{END_OF_TEXT}"
"""Plain, with something in it that can be seen."""
NOTE_PATTERN = rf"^[^\x00]*{END_OF_TEXT}"
"""No database keeps a NUL as every other does."""
EMAIL_PATTERN = rf"^[^@\s{CONTROLS}]+@[^@\s{CONTROLS}]+{END_OF_TEXT}"
