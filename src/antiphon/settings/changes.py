"""Compares the settings before and after a reload: what the reload changes, and what only a restart changes.
Reads no file.
"""

from collections.abc import Mapping, Sequence

import msgspec

from antiphon.domain.values import Struct, field
from antiphon.settings.schema import SECTIONS, Settings, list_settings

MAX_LISTED = 10
"""The most names of one kind in the text of a report."""

MAX_REMOVED_MODELS = 100
"""The most removed models whose metrics stay. A server can be reloaded with ever new names, so the metrics
need a bound."""


class NameChanges(Struct, frozen=True):
    """The names of providers, models or aliases that a reload added, changed and removed."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The changed settings of each changed name. A model that was local and now has routes, or the other way
    round, has none."""

    def describe(self, noun: str) -> list[str]:
        """Returns a text for each kind of change that happened, as `added model a, b` and
        `changed model c (queue)`."""
        changed = tuple(
            f"{name} ({', '.join(self.settings[name])})" if self.settings.get(name) else name
            for name in self.changed
        )
        verbs = {"added": self.added, "changed": changed, "removed": self.removed}
        return [f"{verb} {noun} {join_names(names)}" for verb, names in verbs.items() if names]


class ReloadReport(Struct, frozen=True):
    """The result of a reload."""

    providers: NameChanges = NameChanges()
    models: NameChanges = NameChanges()
    aliases: NameChanges = NameChanges()
    new_keys: tuple[str, ...] = ()
    """Names of providers whose key file has another key."""
    restarted_engines: tuple[str, ...] = ()
    """Names of engine hosts that had been given up and run again."""
    failed_engines: tuple[str, ...] = ()
    """Names of engine hosts that had been given up and could not be started again."""
    restart_settings: tuple[str, ...] = ()
    """Names of settings whose new value acts only after a restart."""
    unconfirmed_processes: tuple[str, ...] = ()
    """Processes that have not confirmed the reload yet. They apply it before they handle other commands."""

    def describe(self) -> str:
        """Returns the report in one line."""
        parts = [
            *self.providers.describe("provider"),
            *self.models.describe("model"),
            *self.aliases.describe("alias"),
        ]
        if self.new_keys:
            parts.append(f"read the new key of provider {join_names(self.new_keys)}")
        if self.restarted_engines:
            parts.append(f"started the engine of {join_names(self.restarted_engines)} again")
        if self.failed_engines:
            parts.append(f"could not start the engine of {join_names(self.failed_engines)} again")
        parts = parts or ["nothing changed"]
        if self.restart_settings:
            parts.append(f"only a restart applies {join_names(self.restart_settings)}")
        if self.unconfirmed_processes:
            parts.append(f"not confirmed yet by {join_names(self.unconfirmed_processes)}")
        return "; ".join(parts)


def join_names(names: tuple[str, ...]) -> str:
    """Joins names with commas. After MAX_LISTED names, tells how many more there are."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def compare_settings(
    before: Settings, after: Settings, restart_settings: tuple[str, ...] = ()
) -> ReloadReport:
    """Builds the report of a reload from the providers, models and aliases before and after it."""
    return ReloadReport(
        providers=compare_tables(before.providers, after.providers),
        models=compare_tables(_index_models(before), _index_models(after)),
        aliases=compare_tables(
            {alias.name: alias for alias in before.aliases}, {alias.name: alias for alias in after.aliases}
        ),
        restart_settings=restart_settings,
    )


def compare_tables(before: Mapping[str, object], after: Mapping[str, object]) -> NameChanges:
    """Compares two tables: which names were added, which values changed, and which names were removed."""
    changed = tuple(name for name in after if name in before and after[name] != before[name])
    return NameChanges(
        added=tuple(name for name in after if name not in before),
        changed=changed,
        removed=tuple(name for name in before if name not in after),
        settings={name: _list_changed_settings(before[name], after[name]) for name in changed},
    )


def _list_changed_settings(before: object, after: object) -> tuple[str, ...]:
    """Returns the settings that differ between two tables of one kind."""
    if type(before) is not type(after) or not isinstance(after, msgspec.Struct):
        return ()
    names = type(after).__struct_fields__
    return tuple(name for name in names if getattr(before, name) != getattr(after, name))


def _index_models(settings: Settings) -> dict[str, object]:
    """Returns local and routed models by their names."""
    models: dict[str, object] = {model.name: model for model in settings.models}
    return models | {model.name: model for model in settings.routed_models}


def list_removed_models(before: Settings, after: Settings, removed: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the models that reloads have removed, oldest first, and at most MAX_REMOVED_MODELS.
    `removed`: the models that earlier reloads have removed. A model that is back is left out."""
    models = _index_models(after)
    names = dict.fromkeys((*removed, *_index_models(before)))
    return tuple(name for name in names if name not in models)[-MAX_REMOVED_MODELS:]


def list_restart_settings(before: Settings, after: Settings) -> tuple[str, ...]:
    """Returns the settings of all sections that differ. A reload applies none of them."""
    return tuple(
        f"{section}.{name}"
        for section in SECTIONS
        for name, *_ in list_settings(section)
        if getattr(getattr(before, section), name) != getattr(getattr(after, section), name)
    )
