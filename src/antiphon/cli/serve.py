"""`antiphon serve`: settles the settings, checks the model files, hands both to the supervisor, shows the
panel.

Everything that can be refused without starting a process is refused here, in one line.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from antiphon.errors import AntiphonError, SettingsError
from antiphon.settings import ModelSettings, Settings, changed, load, with_models
from antiphon.settings import model as model_settings
from antiphon.supervisor import Serving, supervise
from antiphon.telemetry.logs import configure
from antiphon.weights.gguf import read_header
from antiphon.weights.sizing import fitting_context

SETTINGS_FILE = "antiphon.toml"
HOME_VARIABLE = "ANTIPHON_HOME"

DEMO_MODEL: dict[str, object] = {
    "name": "cantor",
    "path": str(Path(__file__).parents[1] / "bundled" / "cantor.gguf"),
    "sequences": 16,
    "exact": True,
}
"""What a bare `antiphon serve` serves. Small enough that exactness costs little."""


def run(
    flags: Mapping[str, Mapping[str, object | None]],
    models: Sequence[str],
    shared: Mapping[str, object | None],
    config: Path | None,
) -> int:
    """Serves until told to stop; returns the process's exit status."""
    try:
        settings = settled(flags, models, shared, config)
        configure(settings.log.level, settings.log.format)
        return supervise(settings, lambda serving: print(panel(settings, serving), flush=True))
    except AntiphonError as error:
        print(f"antiphon: {error.message}", file=sys.stderr)
        return 1


def settled(
    flags: Mapping[str, Mapping[str, object | None]],
    models: Sequence[str],
    shared: Mapping[str, object | None],
    config: Path | None,
) -> Settings:
    """The settings with every model checked and sized. Raises a StartupError."""
    said = {section: _given(values) for section, values in flags.items()}
    common = _given(shared)
    named = [_named(text) | common for text in models]
    environ = {name: value for name, value in os.environ.items() if name != HOME_VARIABLE}
    settings = load(said, environ, config or _settings_file(), named)
    if not settings.models:
        settings = with_models(settings, [model_settings(DEMO_MODEL | common)])
    return with_models(settings, map(_sized, settings.models))


def _given(values: Mapping[str, object | None]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _named(text: str) -> dict[str, object]:
    """`NAME=PATH`, or a path whose file name without its ending is the name."""
    name, equals, path = text.partition("=")
    if equals and name and "/" not in name:
        return {"name": name, "path": path}
    return {"name": Path(text).stem, "path": text}


def _settings_file() -> Path | None:
    """The settings file that lies here, or else in ANTIPHON_HOME."""
    home = os.environ.get(HOME_VARIABLE)
    places = [Path(SETTINGS_FILE)] + ([Path(home) / SETTINGS_FILE] if home else [])
    return next((place for place in places if place.is_file()), None)


def _sized(model: ModelSettings) -> ModelSettings:
    """The model with an absolute path and a context length that its weights and the memory allow."""
    path = Path(model.path).expanduser().absolute()
    header = read_header(path)
    if model.context_length and header.context_length and model.context_length > header.context_length:
        raise SettingsError(
            f"the context length {model.context_length} of {model.name} is more than the "
            f"{header.context_length} that its weights were made for; leave it out or lower it"
        )
    length = model.context_length or fitting_context(header, model.sequences, model.kv_type)
    return changed(model, path=str(path), context_length=length)


def panel(settings: Settings, serving: Serving) -> str:
    """What a newcomer needs to see: where, which models, which library, and a first request to copy."""
    first = settings.models[0].name
    lines = ["", f"  Antiphon listens on {serving.url}", ""]
    for model in settings.models:
        info = serving.engines[model.name]
        size = f"{info.parameters / 1e6:.1f} M parameters, {info.quantization}"
        mode = ", exact" if info.exact else ""
        lines.append(
            f"  model    {model.name}: {size}, {info.sequences} x {info.context_length} tokens{mode}"
        )
    info = serving.engines[first]
    lines.append(f"  library  {info.library}, {info.threads} threads, {' '.join(info.cpu_features)}")
    key = '  -H "Authorization: Bearer $ANTIPHON_API_KEY" \\\n' if settings.server.api_key else ""
    lines += [
        f"  docs     {serving.url}/docs",
        "",
        "  Try it:",
        "",
        f"curl -s {serving.url}/v1/chat/completions \\",
        f"{key}  -H 'Content-Type: application/json' \\",
        f'  -d \'{{"model": "{first}", "messages": [{{"role": "user", "content": "What is Antiphon?"}}]}}\'',
        "",
    ]
    return "\n".join(lines)
