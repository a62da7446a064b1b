"""What was said on the command line about serving, and the settings that it leads to with the environment and
the file. Opens no model file and starts nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.errors import SettingsError
from antiphon.settings.loading import build_model, load_settings
from antiphon.settings.models import ModelSettings, require_aliases
from antiphon.settings.schema import Settings, change_model, dump_model, with_assigned_models, with_models
from antiphon.weights.adapters.registry import default_registry
from antiphon.weights.gguf import without_part
from antiphon.weights.hub.reference import is_reference, parse

SETTINGS_FILE = "antiphon.toml"
HOME_VARIABLE = "ANTIPHON_HOME"
ADAPTERS_VARIABLE = "ANTIPHON_ADAPTERS"
"""Adapters as `--lora` takes them, with commas between them."""
ALIASES_VARIABLE = "ANTIPHON_ALIASES"
"""Aliases as `--alias` takes them, with commas between them."""

BUNDLED_ADAPTERS = Path(__file__).parents[1] / "bundled" / "adapters"
"""Adapters of the demo model, served by `--lora NAME`."""

OWN_VARIABLES = frozenset({HOME_VARIABLE, ADAPTERS_VARIABLE, ALIASES_VARIABLE})
"""Variables that are no setting of a section."""

DEMO_MODEL: dict[str, object] = {
    "name": "cantor",
    "path": str(Path(__file__).parents[1] / "bundled" / "cantor.gguf"),
    "sequences": 16,
    "exact": True,
}
"""What a bare `antiphon serve` serves, and `--model cantor`. Small enough that exactness costs little."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Flags as they were said; what was not said is not here."""

    flags: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By section of the settings, then by name."""
    models: Sequence[str] = ()
    """Each as PATH or NAME=PATH, or the demo model's name for a path."""
    shared: Mapping[str, object] = field(default_factory=dict)
    """What holds for every model."""
    config: Path | None = None
    adapters: Sequence[str] = ()
    """Each as NAME=PATH."""
    aliases: Sequence[str] = ()
    """Each as NAME=MODEL."""

    def load_settings(self) -> Settings:
        """The settings as said, with the demo model if no other is. Raises SettingsError."""
        named = [parse_model(text) for text in self.models]
        adapters = [parse_adapter(text) for text in self.list_adapters()]
        settings = load_settings(
            *self.list_sources(), named, adapters, [parse_alias(text) for text in self.list_aliases()]
        )
        if not settings.models:
            settings = with_models(settings, [build_model(DEMO_MODEL)])
        settings = with_models(settings, map(_set_bundled_path, settings.models))
        served = [model.name for model in settings.models]
        served += [adapter.name for adapter in settings.adapters]
        may_come = settings.lora.directories or settings.lora.repositories
        require_aliases(settings.aliases, served, is_fixed=not may_come)
        return with_assigned_models(
            with_models(settings, map(self._override_model, settings.models)), embedding=None
        )

    def list_adapters(self) -> list[str]:
        """Those of the flags, or else of the variable; the file's are the file's to say."""
        return list(self.adapters) or _split_variable(ADAPTERS_VARIABLE)

    def list_aliases(self) -> list[str]:
        """Those of the flags, or else of the variable; the file's are the file's to say."""
        return list(self.aliases) or _split_variable(ALIASES_VARIABLE)

    def list_sources(self) -> tuple[Mapping[str, Mapping[str, object]], dict[str, str], Path | None]:
        """Flags, variables and file: the first arguments of `settings.load`."""
        environ = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        return self.flags, environ, self.find_file()

    def find_file(self) -> Path | None:
        """The settings file: the one named, or the one that lies here, or else in ANTIPHON_HOME."""
        if self.config:
            return self.config
        home = os.environ.get(HOME_VARIABLE)
        places = [Path(SETTINGS_FILE)] + ([Path(home) / SETTINGS_FILE] if home else [])
        return next((place for place in places if place.is_file()), None)

    def _override_model(self, found: ModelSettings) -> ModelSettings:
        """A flag beats what the file says of a model."""
        return build_model({**dump_model(found), **self.shared}) if self.shared else found


def find_home(environ: Mapping[str, str], home: Path) -> Path:
    """Where a server keeps what is its own: ANTIPHON_HOME, or the platform's directory for data."""
    return default_registry(environ, home).parent


def _split_variable(name: str) -> list[str]:
    """What a variable lists, with commas between."""
    return [text.strip() for text in os.environ.get(name, "").split(",") if text.strip()]


def is_bundled(path: str) -> bool:
    """Whether it names the demo model, since no file lies there."""
    return path == DEMO_MODEL["name"] and not Path(path).is_file()


def _set_bundled_path(found: ModelSettings) -> ModelSettings:
    """The model, with the path of the demo model's file where the settings file names that model."""
    return change_model(found, path=DEMO_MODEL["path"]) if is_bundled(found.path) else found


def parse_model(text: str) -> dict[str, object]:
    """`NAME=PATH`, or a path or reference whose file name without its ending is the name; in the place of a
    path, the demo model's name."""
    name, equals, path = text.partition("=")
    if is_bundled(text):
        return DEMO_MODEL
    if equals and name and "/" not in name:
        return {**DEMO_MODEL, "name": name} if is_bundled(path) else {"name": name, "path": path}
    if is_reference(text):
        return {"name": parse(text).name, "path": text}
    return {"name": without_part(Path(text).name), "path": text}


def parse_adapter(text: str, bundled: Path = BUNDLED_ADAPTERS) -> dict[str, object]:
    """`NAME=PATH`, or the name of an adapter that ships with the demo model. Raises SettingsError."""
    name, equals, path = text.partition("=")
    ours = {file.stem: str(file) for file in sorted(bundled.glob("*.gguf"))}
    if not equals and name in ours:
        return {"name": name, "path": ours[name]}
    if not (equals and name and path):
        shipped = f"; alone only those that ship with cantor: {', '.join(ours)}" if ours else ""
        raise SettingsError(f"an adapter is said as NAME=PATH, not {text!r}{shipped}")
    return {"name": name, "path": path}


def parse_alias(text: str) -> dict[str, object]:
    """`NAME=MODEL`. Raises SettingsError."""
    name, _, target = text.partition("=")
    if not (name and target):
        raise SettingsError(f"an alias is said as NAME=MODEL, not {text!r}")
    return {"name": name, "model": target}


def build_serve_options(values: Mapping[str, object]) -> ServeOptions:
    """What the options of `serve` say, by parameter; None for what was not said."""

    def pick_given(**names: str) -> dict[str, object]:
        return {name: values[option] for name, option in names.items() if values[option] is not None}

    def texts(option: str) -> list[str]:
        listed = values[option]
        return [str(each) for each in listed] if isinstance(listed, list) else []

    server = pick_given(host="host", port="port", workers="workers")
    log = pick_given(level="log_level", format="log_format")
    shared = pick_given(
        sequences="sequences", context_length="context_length", threads="threads", exact="exact"
    )
    config = values["config"]
    return ServeOptions(
        {"server": server, "log": log},
        texts("model"),
        shared,
        config if isinstance(config, Path) else None,
        texts("lora"),
        texts("alias"),
    )
