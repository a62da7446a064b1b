"""Other names of models: rules from a caller's name to the name of a model.

A rule is a name, or a pattern with one `*`. The `*` matches at least one character but no `#`, since a `#`
begins a deployment's name, which is never dropped. A `*` in the target repeats the matched text. A model's
own name is never looked up here, so no rule leads to another rule.
"""

import re
from collections.abc import Mapping

STAR = "*"


class Aliases:
    """Rules in order of precedence: names before patterns, patterns with more fixed characters before others.
    The first match decides."""

    def __init__(self, *rules: Mapping[str, str]) -> None:
        """`rules`: sets of rules; all of one set come before those of the next."""
        self._rules = [
            (_pattern(name), target)
            for each in rules
            for name, target in sorted(each.items(), key=lambda rule: _precedence(rule[0]))
        ]

    def target(self, name: str) -> str | None:
        """Returns the model's name for a caller's name; None where no rule matches."""
        for pattern, target in self._rules:
            if fits := pattern.fullmatch(name):
                return target.replace(STAR, fits[1]) if STAR in target else target
        return None

    def is_taken(self, name: str) -> bool:
        """Whether a rule matches such a name, so that no caller's adapter may have it. A lone `*` takes no
        name."""
        return any(pattern.fullmatch(name) for pattern, _ in self._rules if pattern != ANYTHING)


def _precedence(name: str) -> tuple[bool, int]:
    return STAR in name, -len(name)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(re.escape(STAR), "([^#]+)"), re.DOTALL)


ANYTHING = _pattern(STAR)
