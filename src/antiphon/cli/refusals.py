"""What `antiphon serve` refuses though each setting by itself can be taken: asked by the commands that say
what it would do. The rules are those of `serve`."""

from collections.abc import Callable, Iterator

from antiphon.cli.serve import require_keys, require_spool
from antiphon.errors import SettingsError
from antiphon.settings import Settings

RULES: tuple[Callable[[Settings], None], ...] = (require_keys,)
RULES_OF_KEYS: tuple[Callable[[Settings], None], ...] = (require_spool,)
"""Those that hold where keys are on."""


def refusals(settings: Settings) -> Iterator[SettingsError]:
    """Every refusal, in the order of a start."""
    for rule in (*RULES, *(RULES_OF_KEYS if settings.keys.enabled else ())):
        try:
            rule(settings)
        except SettingsError as error:
            yield error
