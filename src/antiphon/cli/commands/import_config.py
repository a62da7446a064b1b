"""`antiphon import`: settings from another product's configuration."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli import options
from antiphon.cli.output import note, report_errors
from antiphon.errors import SettingsError

app = options.make_group("import", "Settings from another product's configuration.")

STANDARD_OUTPUT = Path("-")


@app.callback()
def _import() -> None:
    """Settings from another product's configuration."""


@app.command()
def litellm(
    config: Annotated[Path, typer.Argument(help="LiteLLM's config.yaml.")],
    out: Annotated[
        Path, typer.Option(help="The new file, which must not exist yet; - prints the settings instead.")
    ] = Path("antiphon.toml"),
) -> None:
    """Write antiphon.toml from the configuration of LiteLLM's proxy, and list what it cannot convert."""
    with report_errors():
        from antiphon.cli.litellm.convert import convert_config
        from antiphon.cli.litellm.reading import read_config
        from antiphon.cli.litellm.toml_text import format_toml

        tree, notes = convert_config(read_config(config), os.environ)
        for line in notes:
            note(line)
        if not tree["models"]:
            raise SettingsError(f"{config} has no model that Antiphon can serve, so nothing was written")
        text = f"# Made from {config.name} of LiteLLM by `antiphon import litellm`.\n\n{format_toml(tree)}"
        _require_loadable(text)
        if out == STANDARD_OUTPUT:
            print(text, end="")
            return
        try:
            with out.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as problem:
            raise SettingsError(f"{out} cannot be written: {problem.strerror or problem}") from None
        print(f"wrote {out}: {_count(tree['models'], 'model')}, {_count(tree['providers'], 'provider')}")


def _require_loadable(text: str) -> None:
    """Raises SettingsError for a text that Antiphon does not load as its settings."""
    from antiphon.settings.loading import load_settings

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "antiphon.toml")
        path.write_text(text, "utf-8")
        load_settings({}, {}, path, [])


def _count(many: object, noun: str) -> str:
    count = len(many) if isinstance(many, list | dict) else 0
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
