"""Adapters and projectors of the settings, before a process is started."""

from pathlib import Path

import msgspec
import pytest

from antiphon.cli.model_files import fetch_model, find_local_model, store_adapters
from antiphon.cli.serve_options import ServeOptions
from antiphon.errors import ModelFetchError, SettingsError
from antiphon.settings.models import HubSettings, ModelSettings
from antiphon.settings.schema import Settings
from benchmarks.make_model import SIZES, write_model
from tests.support.hub_server import HubServer, Repository, serve_hub
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


def see(path: Path | str, mmproj: str = "auto") -> ModelSettings:
    return ModelSettings("owl", str(path), mmproj=mmproj)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["mmproj.gguf"], "mmproj.gguf"),
        (["mmproj-owl-2b-F16.gguf"], "mmproj-owl-2b-F16.gguf"),
        (["owl-2b.mmproj-Q8_0.gguf", "mmproj-bat-7b-f16.gguf"], "owl-2b.mmproj-Q8_0.gguf"),
        (["mmproj-owl-2b-f16.gguf", "mmproj-owl-2b-video-f16.gguf"], "mmproj-owl-2b-f16.gguf"),
        (
            ["mmproj-BF16.gguf", "mmproj-F16.gguf"],
            "several projectors .*: mmproj-BF16.gguf, mmproj-F16.gguf;",
        ),
        (["mmproj-owl-2b-f16.gguf", "mmproj-owl-2b-q8_0.gguf"], "several projectors"),
        (["mmproj.txt", "bat-7b.gguf"], "finds no projector: no GGUF file with mmproj"),
    ],
)
def test_auto_takes_the_only_projector_beside_the_model(tmp_path: Path, files: list[str], found: str) -> None:
    model = tmp_path / "owl-2b-Q4_K_M.gguf"
    for name in (model.name, *files):
        (tmp_path / name).touch()
    for find in (fetch_model, find_local_model):
        if found in files:
            assert find(see(model), HubSettings()).mmproj == str(tmp_path / found)
            continue
        with pytest.raises(SettingsError, match=rf'mmproj = "auto" of the model owl .*{found}'):
            find(see(model), HubSettings())


def test_auto_finds_the_projector_of_a_split_model_by_its_name(tmp_path: Path) -> None:
    model = tmp_path / "gemma-Q4_0-00001-of-00002.gguf"
    for name in (model.name, "mmproj-gemma-f16.gguf", "mmproj-other.gguf"):
        (tmp_path / name).touch()
    assert find_local_model(see(model), HubSettings()).mmproj == str(tmp_path / "mmproj-gemma-f16.gguf")


def test_a_projector_is_fetched_with_the_model_and_found_again_without_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("owl-Q8_0.gguf", "mmproj-owl-f16.gguf", "owl/owl-Q4_0.gguf", "two/owl-Q4_0.gguf")
    files = {name: name.encode() for name in (*names, "two/mmproj-F16.gguf", "two/mmproj-F32.gguf")}
    with serve_hub(HubServer({"ada/owl-GGUF": Repository(files)})) as server:
        hub = HubSettings(cache=str(tmp_path), endpoint=server.url)
        model = see("hf:ada/owl-GGUF:owl-Q8_0.gguf")
        with pytest.raises(SettingsError, match=r"models pull hf:ada/owl-GGUF:owl-Q8_0\.gguf`, then reload"):
            find_local_model(model, hub)
        fetched = fetch_model(model, hub)
        assert Path(fetched.path).read_bytes() == b"owl-Q8_0.gguf"
        assert Path(fetched.mmproj or "").read_bytes() == b"mmproj-owl-f16.gguf"
        assert find_local_model(model, hub) == fetched
        count = len(server.requests)
        assert fetch_model(model, hub) == fetched and len(server.requests) == count, (
            "a later start asks nobody"
        )
        with pytest.raises(SettingsError, match="finds no projector"):
            fetch_model(see("hf:ada/owl-GGUF:owl/owl-Q4_0.gguf"), hub)
        with pytest.raises(SettingsError, match=r"two/mmproj-F16\.gguf, two/mmproj-F32\.gguf; name one"):
            fetch_model(see("hf:ada/owl-GGUF:two/owl-Q4_0.gguf"), hub)
        named = see("hf:ada/owl-GGUF:two/owl-Q4_0.gguf", "hf:ada/owl-GGUF:two/mmproj-F32.gguf")
        with pytest.raises(SettingsError, match=r"models pull hf:ada/owl-GGUF:two/mmproj-F32\.gguf`"):
            find_local_model(named, hub)
        assert Path(fetch_model(named, hub).mmproj or "").read_bytes() == b"two/mmproj-F32.gguf"
        assert find_local_model(named, hub).mmproj
    assert fetch_model(model, msgspec.structs.replace(hub, offline=True)) == fetched
    with pytest.raises(ModelFetchError, match="offline mode is on"):
        fetch_model(model, HubSettings(cache=str(tmp_path / "empty"), offline=True))
    assert "mmproj-owl-f16.gguf" in capsys.readouterr().err
