"""Which demo models a server without settings has, by what was fetched."""

from pathlib import Path

import pytest

from antiphon.cli.serve_options import CANTOR, ServeOptions
from antiphon.errors import SettingsError
from antiphon.settings.schema import Settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def fetch_smollm2(home: Path) -> None:
    (home / "models" / "smollm2").mkdir(parents=True)
    (home / "models" / "smollm2" / "smollm2.gguf").write_bytes(b"GGUF")


def describe(settings: Settings) -> list[tuple[str, str]]:
    return [(model.name, model.load) for model in settings.models]


def find_demo(settings: Settings) -> str | None:
    return next((alias.model for alias in settings.aliases if alias.name == "demo"), None)


def test_cantor_is_served_alone_until_smollm2_was_fetched(home: Path) -> None:
    for models in ((), ("demo",)):
        settings = ServeOptions(models=models).load_settings()
        assert (describe(settings), find_demo(settings)) == ([("cantor", "start")], "cantor")


def test_smollm2_is_served_first_with_its_makers_sampling(home: Path) -> None:
    fetch_smollm2(home)
    for models in ((), ("demo",)):
        settings = ServeOptions(models=models).load_settings()
        assert describe(settings) == [("smollm2", "start"), ("cantor", "request")]
        assert find_demo(settings) == "smollm2"
        assert (settings.models[0].temperature, settings.models[0].top_p) == (0.2, 0.9)


def test_a_named_model_is_served_alone(home: Path) -> None:
    fetch_smollm2(home)
    settings = ServeOptions(models=("cantor",)).load_settings()
    assert (describe(settings), find_demo(settings)) == ([("cantor", "start")], "cantor")
    settings = ServeOptions(models=("smollm2", "mine=cantor")).load_settings()
    assert describe(settings) == [("smollm2", "start"), ("mine", "start")]
    assert find_demo(settings) == "smollm2"
    settings = ServeOptions(models=("demo", "cantor")).load_settings()
    assert describe(settings) == [("smollm2", "start"), ("cantor", "start")]


def test_smollm2_has_its_sampling_under_every_name(home: Path, tmp_path: Path) -> None:
    (named,) = ServeOptions(models=("chat=smollm2",)).load_settings().models
    assert (named.name, named.sequences, named.temperature, named.top_p) == ("chat", 4, 0.2, 0.9)
    (tmp_path / "antiphon.toml").write_text("[[models]]\nname = 'own'\npath = 'smollm2'\ntemperature = 0.7\n")
    (own,) = ServeOptions().load_settings().models
    assert (own.temperature, own.top_p) == (0.7, 0.9)


def test_the_demo_takes_no_name(home: Path) -> None:
    with pytest.raises(SettingsError, match="demo stands for two models, so it takes no name"):
        ServeOptions(models=("chat=demo",)).load_settings()


def test_adapters_are_cantors_so_it_is_served_alone(home: Path) -> None:
    fetch_smollm2(home)
    settings = ServeOptions(adapters=("tuned=tuned.gguf",)).load_settings()
    assert (describe(settings), settings.adapters[0].model) == ([("cantor", "start")], "cantor")


def test_own_names_keep_the_alias_demo(home: Path) -> None:
    settings = ServeOptions(aliases=("demo=cantor",)).load_settings()
    assert [(alias.name, alias.model) for alias in settings.aliases] == [("demo", "cantor")]
    settings = ServeOptions(models=("demo", "other=cantor")).load_settings()
    assert [model.name for model in settings.models] == ["cantor", "other"]


def test_a_file_named_demo_is_a_model_of_its_own(home: Path, tmp_path: Path) -> None:
    (tmp_path / "demo").write_bytes(b"GGUF")
    (model,) = ServeOptions(models=("demo",)).load_settings().models
    assert (model.name, model.path) == ("demo", "demo") != (CANTOR["name"], CANTOR["path"])
