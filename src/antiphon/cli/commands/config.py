"""`antiphon config`: the effective settings and their sources. It starts no server and opens no model."""

import json
from collections.abc import Iterator

from antiphon.cli.commands.serve import find_refusals
from antiphon.cli.output import FAILED, note, print_json, print_table, report_errors
from antiphon.cli.serve_options import (
    ADAPTERS_VARIABLE,
    ALIASES_VARIABLE,
    CANTOR,
    SETTINGS_FILE,
    SMOLLM2_TABLE,
    ServeOptions,
)
from antiphon.settings.loading import SourceKind, format_flag, read_layers
from antiphon.settings.models import ModelSettings
from antiphon.settings.providers import is_routed
from antiphon.settings.schema import SECTIONS, Settings, list_settings

SECRET_SETTINGS = frozenset({"api_key", "pepper", "seal_secret", "token", "url", "webhook", "webhook_secret"})
MASK = "***"

Source = tuple[SourceKind, str]
"""The source of a value: its kind, and the path of the file, the variable's name or the flag."""
DEFAULT: Source = (SourceKind.DEFAULT, "")
DEMO_SOURCE: Source = (SourceKind.DEFAULT, "the demo model")

Row = tuple[str, object, Source]
"""An effective setting: `section.name` or `models.NAME.name`, its value and its source."""


def run(serve_options: ServeOptions, as_json: bool) -> int:
    """Prints the settings, and the errors that `serve` would report; returns the exit status."""
    with report_errors():
        settings = serve_options.load_settings()
        rows = [
            *_list_sections(settings, serve_options),
            *_list_models(settings, serve_options),
            *_list_adapters_and_aliases(settings, serve_options),
            *_list_vendors(settings, serve_options),
        ]
    if as_json:
        print_json(
            {
                key: {"value": value, "source": kind, "place": source_name}
                for key, value, (kind, source_name) in rows
            }
        )
    else:
        cells = [
            {
                "setting": key,
                "value": "none" if value is None or value == () else json.dumps(value),
                "source": source_name or kind,
            }
            for key, value, (kind, source_name) in rows
        ]
        print_table(cells, "")
        path = serve_options.find_file()
        file = path.absolute() if path else f"none; antiphon looks for {SETTINGS_FILE} in this directory"
        print(f"\nsettings file: {file}")
    errors = list(find_refusals(settings))
    for error in errors:
        note(f"serve refuses this: {error.message}")
    return FAILED if errors else 0


def _list_sections(settings: Settings, serve_options: ServeOptions) -> Iterator[Row]:
    """Yields the settings of every section, in the order of the documentation."""
    sources = read_layers(*serve_options.list_sources())
    for section in SECTIONS:
        for name, variable, _, _ in list_settings(section):
            value = getattr(getattr(settings, section), name)
            is_secret = name in SECRET_SETTINGS or (name == "store" and not str(value).startswith("sqlite:"))
            kinds = [kind for kind, layer in sources if name in layer.get(section, ())]
            source_names = {
                SourceKind.FILE: str(serve_options.find_file()),
                SourceKind.VARIABLE: variable,
                SourceKind.FLAG: format_flag(section, name),
            }
            source = (kinds[-1], source_names[kinds[-1]]) if kinds else DEFAULT
            yield f"{section}.{name}", MASK if is_secret and value else value, source


def _list_models(settings: Settings, serve_options: ServeOptions) -> Iterator[Row]:
    """Yields the settings of each model. All models come from one source: the flags, the file or the demo."""
    model_tables = (
        [] if serve_options.models else read_layers(*serve_options.list_sources())[0][1].get("models", [])
    )
    file_models = [table for table in model_tables if not is_routed(table)]
    for index, model in enumerate(settings.models):
        sources: dict[str, Source] = {}
        if file_models:
            sources = dict.fromkeys(file_models[index], (SourceKind.FILE, str(serve_options.find_file())))
        elif model.path == CANTOR["path"]:
            sources = dict.fromkeys((*CANTOR, "load"), DEMO_SOURCE)
        elif model.path == SMOLLM2_TABLE["path"]:
            sources = dict.fromkeys(SMOLLM2_TABLE, DEMO_SOURCE)
        if serve_options.models:
            sources |= dict.fromkeys(("name", "path"), (SourceKind.FLAG, "--model"))
        sources |= {
            name: (SourceKind.FLAG, format_flag("models", name)) for name in serve_options.model_flags
        }
        for name in ModelSettings.__struct_fields__:
            yield f"models.{model.name}.{name}", getattr(model, name), sources.get(name, DEFAULT)


def _list_adapters_and_aliases(settings: Settings, serve_options: ServeOptions) -> Iterator[Row]:
    """Yields adapters and aliases. All adapters come from one source, and so do all aliases."""

    def find_source(flags: object, option: str, flags_or_variable: object, variable: str) -> Source:
        if flags:
            return SourceKind.FLAG, option
        if flags_or_variable:  # without flags, these are what the variable gives
            return SourceKind.VARIABLE, variable
        return SourceKind.FILE, str(serve_options.find_file())

    adapter_source = find_source(
        serve_options.adapters, "--lora", serve_options.list_adapters(), ADAPTERS_VARIABLE
    )
    for adapter in settings.adapters:
        yield f"adapters.{adapter.name}.path", adapter.path, adapter_source
        yield f"adapters.{adapter.name}.model", adapter.model, adapter_source
    alias_source = find_source(
        serve_options.aliases, "--alias", serve_options.list_aliases(), ALIASES_VARIABLE
    )
    file_aliases = read_layers(*serve_options.list_sources())[0][1].get("aliases", [])
    own_names = {text.partition("=")[0] for text in serve_options.list_aliases()}
    own_names |= {table["name"] for table in file_aliases}
    for alias in settings.aliases:
        yield f"aliases.{alias.name}", alias.model, alias_source if alias.name in own_names else DEMO_SOURCE


def _list_vendors(settings: Settings, serve_options: ServeOptions) -> Iterator[Row]:
    """Yields the settings of providers and routed models, which only the file can set.

    Masks the values of headers and the addresses of proxies with a password, because these are secrets.
    """
    file_settings = read_layers(*serve_options.list_sources())[0][1]
    file_source = (SourceKind.FILE, str(serve_options.find_file()))
    for name, provider in settings.providers.items():
        sources = dict.fromkeys(file_settings.get("providers", {}).get(name, ()), file_source)
        for option in type(provider).__struct_fields__:
            value = getattr(provider, option)
            shown_value = dict.fromkeys(value, MASK) if option == "headers" else value
            if option == "proxy" and value is not None and "@" in value:
                shown_value = MASK  # it contains a password
            yield f"providers.{name}.{option}", shown_value, sources.get(option, DEFAULT)
    tables = filter(is_routed, file_settings.get("models", ()))
    for model, table in zip(settings.routed_models, tables, strict=False):
        for index, route in enumerate(model.list_routes()):
            sources = dict.fromkeys(table["routes"][index] if model.routes else table, file_source)
            for option in type(route).__struct_fields__:
                path = f"models.{model.name}.routes[{index}].{option}"
                yield path, getattr(route, option), sources.get(option, DEFAULT)
        source = file_source if "prefer_prefix" in table else DEFAULT
        yield f"models.{model.name}.prefer_prefix", model.prefer_prefix, source
        sources = dict.fromkeys(table.get("profile", ()), file_source)
        for option in type(model.profile).__struct_fields__:
            path = f"models.{model.name}.profile.{option}"
            yield path, getattr(model.profile, option), sources.get(option, DEFAULT)
