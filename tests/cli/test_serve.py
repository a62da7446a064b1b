"""`antiphon serve` before it starts anything: which settings it arrives at, and what the panel shows."""

import json
import os
import shlex
from pathlib import Path

import pytest

from antiphon.cli.commands.serve import (
    SettingsSource,
    choose_weight_placement,
    format_panel,
    prepare_settings,
    size_model,
)
from antiphon.cli.console import SERVE_OPTIONS
from antiphon.cli.serve_options import ServeOptions, build_serve_options
from antiphon.domain.models import DeviceLayers, DeviceMemory, Load
from antiphon.domain.values import replace
from antiphon.errors import LoadError, ModelFileError, SettingsError
from antiphon.processes.supervisor import ServingInfo
from antiphon.settings.loading import build_model
from antiphon.settings.schema import Settings, change_model, replace_models
from antiphon.weights.kv_cache_size import estimate_memory
from antiphon_testing import scripted_info
from tests.support.model_files import CANTOR, write_encoder


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No setting anywhere but what a test gives."""
    monkeypatch.chdir(tmp_path)
    for name in ("ANTIPHON_HOME", "ANTIPHON_TEST_REQUIRE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def arrived(*models: str, config: Path | None = None, **shared: object) -> Settings:
    return prepare_settings(ServeOptions({"server": {"port": 0}}, models, shared, config))


def test_a_bare_command_serves_the_demo_model_exactly():
    (model,) = arrived().models
    assert (model.name, model.path, model.exact) == ("cantor", str(CANTOR), True)
    assert (model.sequences, model.context_length) == (16, 2048)


def test_a_model_is_named_by_its_path_or_by_a_given_name():
    one, two = arrived(str(CANTOR), f"other={CANTOR}").models
    assert (one.name, two.name, two.path) == ("cantor", "other", str(CANTOR))
    assert not one.exact, "only the demo model is exact by itself"


def test_the_demo_models_name_means_a_file_of_that_name_first(bare: Path):
    own, cantor, other = arrived(f"own={CANTOR}", "cantor", "other=cantor").models
    assert [model.name for model in (own, cantor, other)] == ["own", "cantor", "other"]
    assert {model.path for model in (own, cantor, other)} == {str(CANTOR)}
    assert (own.exact, cantor.exact, other.exact) == (False, True, True)
    (bare / "antiphon.toml").write_text('[[models]]\nname = "small"\npath = "cantor"\n')
    (from_file,) = arrived().models
    assert (from_file.name, from_file.path) == ("small", str(CANTOR))
    (bare / "cantor").write_bytes(CANTOR.read_bytes())
    (file,) = arrived("cantor").models
    assert (file.name, file.path, file.exact) == ("cantor", str(bare / "cantor"), False)


def test_flags_for_models_hold_for_all_of_them():
    models = arrived(str(CANTOR), f"other={CANTOR}", sequences=3, context_length=512, exact=True).models
    assert {(model.sequences, model.context_length, model.exact) for model in models} == {(3, 512, True)}


def test_flags_for_models_beat_what_the_file_says_of_them(bare: Path):
    (bare / "antiphon.toml").write_text(
        f'[[models]]\nname = "a"\npath = "{CANTOR}"\nsequences = 2\nexact = true\n'
    )
    (model,) = arrived(sequences=5).models
    assert (model.sequences, model.exact) == (5, True)


def test_a_flag_for_models_is_checked_like_the_file():
    with pytest.raises(SettingsError, match="at most 256"):
        arrived(sequences=1000)


def test_a_context_beyond_the_weights_is_refused():
    with pytest.raises(SettingsError, match="4096 of cantor is more than the 2048"):
        arrived(context_length=4096)


def test_weights_are_copied_if_all_models_fit_half_the_memory():
    models = [size_model(build_model({"name": name, "path": str(CANTOR)})) for name in ("one", "two")]
    size = CANTOR.stat().st_size
    assert [one.weights for one in choose_weight_placement(models, 4 * size)] == ["memory", "memory"]
    assert [one.weights for one in choose_weight_placement(models, 4 * size - 2)] == ["file", "file"]
    said = [change_model(models[0], weights="file"), models[1], change_model(models[1], weights="memory")]
    assert [one.weights for one in choose_weight_placement(said, 4 * size)] == ["file", "memory", "memory"]
    assert [one.weights for one in choose_weight_placement(said, size)] == ["file", "file", "memory"], (
        "what is said stands"
    )
    assert arrived().models[0].weights == "memory"


def test_the_memory_of_a_model_includes_its_projector(bare: Path):
    projector = bare / "mmproj.gguf"
    projector.touch()
    os.truncate(projector, 1 << 40)
    alone = build_model({"name": "owl", "path": str(CANTOR), "context_length": 512})
    seeing = change_model(alone, mmproj=str(projector))
    assert estimate_memory(seeing) - estimate_memory(alone) == 1 << 40
    assert size_model(change_model(alone, context_length=None)).context_length == 2048
    with pytest.raises(LoadError, match="more than the free memory"):
        size_model(change_model(seeing, context_length=None))
    projector.unlink()
    with pytest.raises(ModelFileError, match=r"mmproj\.gguf cannot be read"):
        estimate_memory(seeing)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cells", 500),
        ("layout", "pool"),
        ("step_latency", 0.2),
        ("keep_prefixes", False),
        ("tool_calls", "hermes"),
        ("reasoning", "think"),
    ],
)
def test_settings_of_generation_are_refused_for_embedding_models(bare: Path, name: str, value: object):
    path = str(write_encoder(bare / "encoder.gguf"))
    assert size_model(build_model({"name": "enc", "path": path, "weights": "file"})).weights == "file"
    with pytest.raises(SettingsError, match=f"enc is an embedding model, where {name} has no effect"):
        size_model(build_model({"name": "enc", "path": path, name: value}))


def test_the_settings_file_is_found_here_and_in_the_home(bare: Path, monkeypatch: pytest.MonkeyPatch):
    home = bare / "home"
    home.mkdir()
    (home / "antiphon.toml").write_text("[server]\nsend_timeout = 5\n")
    monkeypatch.setenv("ANTIPHON_HOME", str(home))
    assert arrived().server.send_timeout == 5
    (bare / "antiphon.toml").write_text("[server]\nsend_timeout = 6\n")
    assert arrived().server.send_timeout == 6
    (bare / "third.toml").write_text("[server]\nsend_timeout = 7\n")
    assert arrived(config=bare / "third.toml").server.send_timeout == 7


def test_a_reload_without_its_settings_file_is_refused(bare: Path):
    file = bare / "antiphon.toml"
    file.write_text("[server]\nrequest_timeout = 7\n")
    source = SettingsSource(ServeOptions())
    settings = source.load()
    assert source.reload_settings(settings)[0] == settings
    saved = file.rename(bare / "saved.toml")
    with pytest.raises(SettingsError, match="is gone"):
        source.reload_settings(settings)
    os.mkfifo(file)
    with pytest.raises(SettingsError, match=r"antiphon.toml is not a regular file: put a file there"):
        source.reload_settings(settings)
    file.unlink()
    saved.rename(file)
    assert source.reload_settings(settings)[0] == settings


def test_the_panel_asks_for_the_key_without_showing_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTIPHON_API_KEY", "0123456789abcdef0123")
    settings = arrived()
    info = replace(scripted_info(), library="llama.cpp test", cpu_features=("AVX2",))
    text = format_panel(settings, ServingInfo("http://127.0.0.1:1", {"cantor": info}))
    assert "$ANTIPHON_API_KEY" in text and "0123456789abcdef" not in text
    assert "llama.cpp test" in text and "AVX2" in text and "http://127.0.0.1:1/v1/chat/completions" in text


def test_the_panel_tells_what_computes_on_a_device():
    card = DeviceLayers("CUDA0", "a card\x1b", 20, 23)
    load = Load(devices=(DeviceMemory("CUDA0", 20, 8_000_000_000, 6_140_000_000),))
    settings = replace_models(Settings(), [build_model({"name": "m", "path": "x"})])

    def panel(**facts: object) -> str:
        info = replace(scripted_info(), **facts)  # type: ignore[arg-type]
        return format_panel(settings, ServingInfo("http://127.0.0.1:1", {"m": info}))

    told = r"  device   20 of 23 layers on CUDA0 (a card\x1b)"
    assert f"{told}, 6.1 of 8.0 GB in use\n" in panel(devices=(card,), load=load)
    assert f"{told}\n" in panel(devices=(card,)), "the driver does not tell how full it is"
    assert "device" not in panel()


def test_flags_of_devices_reach_every_model(bare: Path):
    def serve(**given: str) -> Settings:
        values: dict[str, object] = dict.fromkeys(SERVE_OPTIONS)
        return build_serve_options(values | {"model": ["a=x.gguf", "b=y.gguf"]} | given).load_settings()

    settings = serve(gpu_layers="12", devices="CUDA1, CUDA0", tensor_split="3,1")
    for model in settings.models:
        assert (model.gpu_layers, model.devices) == (12, ("CUDA1", "CUDA0"))
        assert model.tensor_split == (3.0, 1.0)
    assert [model.gpu_layers for model in serve(gpu_layers="auto").models] == ["auto"] * 2
    assert [model.gpu_layers for model in serve().models] == ["auto"] * 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpu_layers": "most"}, "gpu_layers"),
        ({"gpu_layers": "-1"}, "gpu_layers"),
        (
            {"tensor_split": "3:1"},
            "write --tensor-split as numbers separated by commas, such as 3,1, not '3:1'",
        ),
        ({"tensor_split": "3,-1"}, "tensor_split"),
        ({"tensor_split": "nan,1"}, "tensor_split"),
        ({"devices": "CUDA0,"}, "devices"),
    ],
    ids=["word", "negative", "colon", "less", "nan", "empty"],
)
def test_nonsense_about_devices_is_refused(bare: Path, given: dict[str, str], told: str):
    values: dict[str, object] = dict.fromkeys(SERVE_OPTIONS)
    with pytest.raises(SettingsError, match=told):
        build_serve_options(values | {"model": ["a=x.gguf"]} | given).load_settings()


def test_control_characters_in_a_name_are_escaped_for_terminals():
    name = "a'\x1b]0;b\x07\u202e\nc"
    settings = replace_models(Settings(), [build_model({"name": name, "path": "x"})])
    text = format_panel(settings, ServingInfo("http://127.0.0.1:1", {name: scripted_info()}))
    assert all(each.isprintable() for each in text.split("\n"))
    assert r"a'\x1b]0;b\x07\u202e\nc" in text
    words = shlex.split(text.partition("Try it:")[2].replace("\\\n", " "))
    assert json.loads(words[words.index("-d") + 1])["model"] == name
