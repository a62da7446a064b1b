"""Other names of models. `antiphon.settings` has the rest, and reads them."""

from collections.abc import Collection, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.domain.aliases import STAR
from antiphon.errors import SettingsError


class AliasSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One other name of a model, or a pattern of such. Several are given as a list of tables in the file, by
    repeating `--alias NAME=MODEL`, or in `ANTIPHON_ALIASES` with commas between them. A model's own name
    comes before aliases, a name before patterns, and a pattern with more characters before others. The
    Fireworks dialect brings the last of all, `accounts/fireworks/models/*`, whose model is `*`."""

    name: Annotated[
        str,
        Meta(
            description="What callers may send as model; one `*` in it stands for any characters but `#`.",
            min_length=1,
            max_length=256,
        ),
    ]
    model: Annotated[
        str,
        Meta(
            description="Name of the model or adapter that it means; a `*` in it is what that of the name "
            "stands for.",
            min_length=1,
            max_length=256,
        ),
    ]


def require_aliases(aliases: Sequence[AliasSettings], served: Collection[str], fixed: bool) -> None:
    """Raises SettingsError for an alias that leads nowhere, or that no caller could ever use. `served`: the
    names of models and adapters; `fixed`: whether no other adapter can come while the server runs."""
    names = [alias.name for alias in aliases]
    for at, alias in enumerate(aliases):
        name, model = alias.name, alias.model
        if name in names[:at]:
            raise SettingsError(f"two aliases are named {name!r}; leave one out")
        if name.count(STAR) > 1 or model.count(STAR) > name.count(STAR):
            raise SettingsError(
                f"the alias {name!r} of {model!r} must have at most one {STAR}, and its model only where the "
                "name has one"
            )
        if name in served:
            raise SettingsError(f"the alias {name!r} is the name of a model; give it another name")
        if model in names and model not in served:
            raise SettingsError(
                f"the alias {name!r} leads to the alias {model!r}; say the name of the model itself"
            )
        if fixed and STAR not in model and model not in served:
            known = ", ".join(served)
            raise SettingsError(
                f"the alias {name!r} leads to {model!r}, which is not served; this server has: {known}"
            )
