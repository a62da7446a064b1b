"""Other names of models: rules from what a caller may write to the name of a model. Values only.

A rule is a name, or a pattern with one `*`, which stands for at least one character but no `#` (what follows
one names a deployment, and is never dropped); a `*` on the other side is what the first one stood for. A
model's own name is never looked up here, so a rule leads to a model and not to another rule.
"""

import re
from collections.abc import Mapping

STAR = "*"


class Aliases:
    """Rules in order of precedence: names before patterns, patterns with more fixed characters before others.
    The first that fits decides."""

    def __init__(self, *rules: Mapping[str, str]) -> None:
        """`rules`: one set after the other; all of one come before those of the next."""
        self._rules = [
            (_pattern(name), target)
            for each in rules
            for name, target in sorted(each.items(), key=lambda rule: _precedence(rule[0]))
        ]

    def target(self, name: str) -> str | None:
        """The model's name that a caller's stands for; None where no rule fits."""
        for pattern, target in self._rules:
            if fits := pattern.fullmatch(name):
                return target.replace(STAR, fits[1]) if STAR in target else target
        return None

    def is_taken(self, name: str) -> bool:
        """Whether a rule is about such names, so that no adapter of a caller's may have one. A lone `*` is
        about all that has no name, and takes none."""
        return any(pattern.fullmatch(name) for pattern, _ in self._rules if pattern != ANYTHING)


def _precedence(name: str) -> tuple[bool, int]:
    return STAR in name, -len(name)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(re.escape(STAR), "([^#]+)"), re.DOTALL)


ANYTHING = _pattern(STAR)
