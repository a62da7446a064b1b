"""Adapters of the settings, before a process is started."""

from pathlib import Path

import pytest

from antiphon.cli.model_files import find_local_model, store_adapters
from antiphon.cli.serve_options import ServeOptions
from antiphon.errors import SettingsError
from antiphon.settings.models import HubSettings, ModelSettings
from antiphon.settings.schema import Settings
from benchmarks.make_model import SIZES, write_model
from tests.support.lora_server import write_peft
from tests.support.model_files import write_encoder


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A model that generates and one that makes embeddings, as `--model` says them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    base = write_model(tmp_path / "base.gguf", SIZES["tiny"], "f32")
    write_peft(tmp_path / "pirate", base)
    return [f"enc={write_encoder(tmp_path / 'encoder.gguf')}", f"m={base}"]


def settled(models: list[str]) -> Settings:
    return store_adapters(ServeOptions(models=models, adapters=["pirate=pirate"]).load_settings())


def test_a_flag_adapts_the_only_model_that_generates(asked: list[str]) -> None:
    (adapter,) = settled(asked).adapters
    assert adapter.model == "m" and Path(adapter.path).parent.name == "adapters"


def test_an_embedding_model_alone_takes_none(asked: list[str]) -> None:
    with pytest.raises(SettingsError, match="pirate cannot be served: enc is an embedding model"):
        settled(asked[:1])


def test_among_several_that_generate_only_these_are_named(asked: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"several models \(m, n\)"):
        settled([*asked, asked[1].replace("m=", "n=", 1)])


def test_a_reload_fetches_no_minilm_and_says_how(tmp_path: Path) -> None:
    hub, model = HubSettings(cache=str(tmp_path)), ModelSettings("mine", "minilm")
    with pytest.raises(
        SettingsError, match="model mine was not fetched yet: run `antiphon models pull minilm`"
    ):
        find_local_model(model, hub)
    (tmp_path / "minilm").mkdir()
    write_encoder(tmp_path / "minilm" / "minilm-f16.gguf")
    assert find_local_model(model, hub).path == str(tmp_path / "minilm" / "minilm-f16.gguf")
