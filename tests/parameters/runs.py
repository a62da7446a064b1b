"""Every case at every spot that has its field. It imports the modules of cases, which register them."""

from importlib import import_module
from pathlib import Path

from tests.parameters.registry import CASES, Case
from tests.parameters.spots import TEXTS, Spot

for file in sorted(Path(__file__).parent.glob("cases_*.py")):
    import_module(f"{__package__}.{file.stem}")

RUNS = [(spot, each) for each in CASES for spot in each.spots if spot.supports(each.field)]


SAID = frozenset(("response_format", "stop", "include_stop_str_in_output", "chat_template_kwargs"))
"""Fields that act on what the model says, or on what its template shows: a script shows no difference."""


def is_repeated(spot: Spot, each: Case) -> bool:
    """Whether the real engine makes this difference for an earlier dialect, or for this one's chats, and what
    reaches the engine shows it here."""
    earlier = next(spot for spot in each.spots if spot.supports(each.field))
    is_shown = each.server == "cantor" and not callable(each.given) and each.field not in SAID
    is_of_chats = spot in TEXTS and spot != earlier and each.field != "model"
    return is_shown and (spot.dialect != earlier.dialect or is_of_chats)


REPEATED = [(spot, each) for spot, each in RUNS if is_repeated(spot, each)]
"""`make test` asks these only what reaches the engine; `make soak` asks the real one."""
