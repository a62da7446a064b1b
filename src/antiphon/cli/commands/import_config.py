"""`antiphon import`: converts another product's configuration to settings."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli import console
from antiphon.cli.output import note, report_errors
from antiphon.errors import SettingsError

app = console.create_group("import", "Convert another product's configuration.")

STANDARD_OUTPUT = Path("-")


@app.callback()
def _import() -> None:
    """Convert another product's configuration."""


@app.command()
def litellm(
    config: Annotated[Path, typer.Argument(help="LiteLLM's config.yaml.")],
    out: Annotated[
        Path, typer.Option(help="The new settings file, which must not exist; - prints the settings.")
    ] = Path("antiphon.toml"),
) -> None:
    """Convert LiteLLM's proxy configuration to antiphon.toml, and report omitted settings."""
    with report_errors():
        from antiphon.cli.litellm.config import read_config
        from antiphon.cli.litellm.convert import convert_config, format_toml

        settings, notes = convert_config(read_config(config), os.environ)
        for line in notes:
            note(line)
        if not settings["models"]:
            raise SettingsError(f"{config} has no model that Antiphon can serve, so nothing was written")
        text = (
            f"# Made from {config.name} of LiteLLM by `antiphon import litellm`.\n\n{format_toml(settings)}"
        )
        _require_loadable(text)
        if out == STANDARD_OUTPUT:
            print(text, end="")
            return
        try:
            with out.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as problem:
            raise SettingsError(f"{out} cannot be written: {problem.strerror or problem}") from None
        print(
            f"wrote {out}: {_format_count(settings['models'], 'model')}, "
            f"{_format_count(settings['providers'], 'provider')}"
        )


def _require_loadable(text: str) -> None:
    """Raises SettingsError if Antiphon cannot load the text as its settings."""
    from antiphon.settings.loading import load_settings

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "antiphon.toml")
        path.write_text(text, "utf-8")
        load_settings({}, {}, path, [])


def _format_count(items: object, noun: str) -> str:
    count = len(items) if isinstance(items, list | dict) else 0
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
