"""JSON Schema's string formats as regular expressions: those that are enforced. Others are refused.

The compiler's own dates allow 29 February in every year and its times a leap second in every minute; these
here allow neither. What is not here but in COMPILED is the compiler's own.
"""

YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
"""0001 to 9999."""

LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
"""Divisible by 4 and not by 100, or by 400."""

DATE = (
    f"(?:{YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{LEAP_YEAR}-02-29)"
)

CLOCK = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)

OWN = {"date": DATE, "time": CLOCK, "date-time": f"{DATE}T{CLOCK}"}
"""Formats that are compiled from these, as a pattern of the whole string."""

COMPILED = {
    "duration": None,
    "email": None,
    "hostname": 253,
    "ipv4": None,
    "ipv6": None,
    "uuid": None,
    "uri": None,
}
"""Formats of the compiler's own that are right, with the most characters that they may have."""
