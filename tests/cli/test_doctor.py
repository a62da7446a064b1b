"""`antiphon doctor`: set-ups that are broken in one way each, and the remedy that it names for each."""

import json
import os
import re
import resource
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from antiphon.cli.doctor.checks import (
    check_adapters,
    check_cache,
    check_engine,
    check_media,
    check_models,
    check_port,
    check_settings,
    check_sockets,
    measure_free_memory,
    parse_probe_output,
)
from antiphon.cli.doctor.findings import REMEDIES, Finding, FindingSeverity, report_ok
from antiphon.cli.doctor.probe import (
    check_devices,
    check_processor,
    check_threads,
    find_gpus,
    list_processor_features,
)
from antiphon.cli.doctor.report import run_checks
from antiphon.cli.serve_options import ServeOptions
from antiphon.domain.values import asdict
from antiphon.engines.llama.libllama.library import find_installed
from antiphon.engines.llama.libllama.placement import Device
from antiphon.settings.loading import build_model
from antiphon.settings.models import HubSettings, ModelSettings
from antiphon.settings.schema import EngineSettings, Settings
from antiphon.settings.server import ServerSettings
from antiphon.weights.hub.cache import HubCache
from antiphon.weights.hub.reference import parse
from benchmarks.make_adapter import write_adapter
from tests.cli import setups
from tests.cli.conftest import Run
from tests.support.model_files import CANTOR

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"

Examine = Callable[..., dict[str, Finding]]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Examine:
    """The findings of this machine with these settings, by id. The port is free unless a test says so."""
    for name in list(os.environ):
        if name.startswith("ANTIPHON_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def look(
        *models: Path | str,
        load: bool = False,
        port: int = 0,
        env: dict[str, str] | None = None,
        **shared: object,
    ) -> dict[str, Finding]:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        asked = ServeOptions({"server": {"port": 0}}, [str(model) for model in models], shared)
        return {finding.id: finding for finding in run_checks(asked, load=False)}

    return look


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """For a library, which is too large to be kept after the test."""
    yield tmp_path
    (tmp_path / setups.LIBRARY).unlink()


def test_what_decodes_images_is_there_and_works() -> None:
    seeing = build_model({"name": "owl", "path": "owl.gguf", "mmproj": "eyes.gguf"})
    assert list(check_media(Settings())) == []
    (works,) = check_media(Settings(models=(seeing,)))
    assert (works.id, works.severity) == ("media", FindingSeverity.OK) and "owl" in works.message
    (missing,) = check_media(Settings(models=(seeing,)), is_installed=False)
    assert missing.id == "media-missing" and "EXTRAS=media" in missing.remedy


def models_checked(path: Path, **values: object) -> list[Finding]:
    """What is said of one model."""
    one = build_model({"name": "a", "path": str(path), **values})
    return check_models(Settings(models=(one,)))[1]


def adapters_checked(env: dict[str, str]) -> dict[str, Finding]:
    """What is said of the adapters of the settings in these variables, by id."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        settings, _ = check_settings(ServeOptions({"server": {"port": 0}}))
    return {finding.id: finding for finding in check_adapters(settings, check_models(settings)[0])}


def only_broken(findings: dict[str, Finding]) -> Finding:
    (broken,) = [finding for finding in findings.values() if finding.severity is FindingSeverity.BROKEN]
    return broken


# --- what is well --------------------------------------------------------------------------------------


def test_a_working_setup_has_no_findings_and_loads_the_model(antiphon: Run):
    done = antiphon("doctor", "--port", "0", "--load", "--json")
    shown = json.loads(done.stdout)
    assert (done.returncode, done.stderr, shown["broken"]) == (0, "", 0)
    said = {finding["id"]: finding["said"] for finding in shown["findings"]}
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}" in said["python"]
    assert "llama.cpp " in said["library"] and str(next(find_installed()).path) in said["library"]
    assert "the first library" in said["library"]
    assert "16 x 2048 tokens" in said["model"]
    assert said["loading"] == "cantor.gguf loads"
    assert {"settings", "threads", "memory", "port", "cache", "sockets"} <= set(said)


def test_text_has_the_same_findings_and_the_status_is_a_failure(antiphon: Run):
    done = antiphon("doctor", "--port", "0", "--model", "missing.gguf")
    assert done.returncode == 1 and done.stderr == ""
    text = " ".join(done.stdout.split())
    assert "BROKEN model-invalid: there is no file" in text
    assert "-> Check the path given to --model" in text
    assert "1 thing is broken" in text and "docs/troubleshooting.md" in text


def test_adapters_are_tried_on_their_model_and_leave_nothing(tmp_path: Path):
    write_adapter(tmp_path / "good.gguf", CANTOR, rank=2)
    said = f"good={tmp_path / 'good.gguf'}"
    before = sorted(tmp_path.rglob("*"))
    found = adapters_checked({"ANTIPHON_ADAPTERS": said, "ANTIPHON_LORA_DIRECTORIES": str(tmp_path)})
    assert "good, " in found["adapter"].message and "rank 2, for cantor" in found["adapter"].message
    assert found["adapters"].message == f"callers may load from {tmp_path}"
    assert sorted(tmp_path.rglob("*")) == before
    broken = adapters_checked({"ANTIPHON_ADAPTERS": f"{said},bad={CANTOR}"})["adapter-invalid"]
    assert "the adapter bad cannot be served" in broken.message and "--lora" in broken.remedy


# --- ten and more that are not -------------------------------------------------------------------------


def test_no_library(examined: Examine, tmp_path: Path):
    python = setups.python_without(tmp_path, "xllamacpp", "llama_cpp")
    broken = only_broken(examined(env={"ANTIPHON_ENGINE_INTERPRETER": str(python)}))
    assert broken.id == "library-missing" and "requirements/serve.txt" in broken.remedy


def test_a_library_of_another_abi(examined: Examine, place: Path):
    broken = only_broken(examined(env={"ANTIPHON_ENGINE_LIBRARY": str(setups.other_abi(place))}))
    assert broken.id == "library-unusable" and "n_ctx is 513, not 512" in broken.message
    assert "xllamacpp version" in broken.remedy


def test_a_system_package_that_is_missing(examined: Examine, place: Path):
    broken = only_broken(examined(env={"ANTIPHON_ENGINE_LIBRARY": str(setups.without_gomp(place))}))
    assert broken.id == "library-unusable" and "libgomp.so.9" in broken.message
    assert broken.remedy == "Install the system package libgomp1"


def test_a_library_that_is_none(examined: Examine):
    other = next(Path(sysconfig.get_path("platlib")).glob("msgspec/_core*.so"))
    broken = only_broken(examined(env={"ANTIPHON_ENGINE_LIBRARY": str(other)}))
    assert broken.id == "library-unusable" and "not a llama.cpp library" in broken.message
    assert "ANTIPHON_ENGINE_LIBRARY" in broken.remedy


def test_a_library_that_ends_its_process_ends_no_doctor(examined: Examine, place: Path):
    broken = only_broken(examined(env={"ANTIPHON_ENGINE_LIBRARY": str(setups.dying(place))}))
    assert broken.id == "library-crashes" and "SIGILL" in broken.message and "libllama.so" in broken.message
    assert "built for another processor" in broken.remedy


def test_a_library_without_the_processors_features(examined: Examine, place: Path):
    findings = examined(env={"ANTIPHON_ENGINE_LIBRARY": str(setups.without_avx2(place))})
    advice = findings["cpu-features-unused"]
    assert advice.severity is FindingSeverity.ADVICE
    assert re.search(r"not .*\bAVX2\b", advice.message) and "several times slower" in advice.message
    assert "make native" in advice.remedy and "the wheel with [native]" in advice.remedy


def test_a_model_that_is_cut_short(tmp_path: Path):
    (broken,) = models_checked(setups.cut_model(tmp_path))
    assert broken.id == "model-invalid" and "ends before its weights do" in broken.message
    assert "fetch it again" in broken.remedy


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        broken = check_port(ServerSettings(port=port))
    assert broken.id == "port-taken" and f"port {port}" in broken.message
    assert "another port with --port" in broken.remedy


def test_an_address_of_another_machine():
    broken = check_port(ServerSettings(host="192.0.2.1", port=0, api_key="0123456789abcdef"))
    assert broken.id == "address-unavailable" and "--host 127.0.0.1" in broken.remedy


def test_no_memory_for_the_context(tmp_path: Path):
    long = setups.long_model(tmp_path, 1 << 28)
    _, broken = models_checked(long, context_length=1 << 28, sequences=200)
    assert broken.id == "memory-short" and "GB are available" in broken.message
    assert "Lower --context-length or --sequences" in broken.remedy


def cache_checked(root: Path, *paths: str) -> Finding:
    models = tuple(ModelSettings(name=f"m{number}", path=path) for number, path in enumerate(paths))
    return check_cache(Settings(hub=HubSettings(cache=str(root)), models=models))


def test_models_of_the_hub_and_of_wheels_are_counted(tmp_path: Path):
    assert f"{tmp_path}: 0 fetched, " in cache_checked(tmp_path).message
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "smollm2.gguf").touch()
    cache, reference = HubCache(tmp_path), parse("hf:owner/fetched:file.gguf")
    cache.build_file_path(reference, "ab" * 20).parent.mkdir(parents=True)
    cache.build_file_path(reference, "ab" * 20).touch()
    cache.add_reference(reference, "cd" * 20, "ab" * 20)
    assert f"{tmp_path}: 2 fetched, " in cache_checked(tmp_path).message


def test_a_cache_that_cannot_be_read(tmp_path: Path):
    (tmp_path / "file").write_text("not a directory")
    broken = cache_checked(tmp_path / "file", "hf:owner/repo:file.gguf")
    assert broken.id == "cache-unusable" and "Not a directory" in broken.message
    assert "ANTIPHON_HUB_CACHE" in broken.remedy and broken.severity is FindingSeverity.BROKEN
    unused = cache_checked(tmp_path / "file", "/models/own.gguf")
    assert unused.id == "cache-unusable" and unused.severity is FindingSeverity.ADVICE


@pytest.mark.parametrize(
    ("path", "severity"),
    [
        ("/models/own.gguf", FindingSeverity.ADVICE),
        ("hf:owner/fetched:file.gguf", FindingSeverity.ADVICE),
        ("hf:owner/missing:file.gguf", FindingSeverity.BROKEN),
        ("minilm", FindingSeverity.BROKEN),
    ],
)
def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, severity: FindingSeverity
):
    cache, reference = HubCache(tmp_path), parse("hf:owner/fetched:file.gguf")
    cache.build_file_path(reference, "ab" * 20).parent.mkdir(parents=True)
    cache.build_file_path(reference, "ab" * 20).touch()
    cache.add_reference(reference, "cd" * 20, "ab" * 20)
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = cache_checked(tmp_path, path)
    assert (found.id, found.severity) == ("cache-unusable", severity)
    assert "cannot write to the model cache" in found.message


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        ("[server\n", "not valid TOML", "docs/configuration.md"),
        ("[server]\nprot = 1\n", "prot", "Did you mean port?"),
        ("server = 3\n", "must be a table", "docs/configuration.md"),
        ('[hub]\ncache = "~nosuchuser/models"\n', "no such user", "rite the whole path"),
        ('[lora]\nregistry = "a\\u0000b"\n', "NUL", "eave it out"),
        ('[hub]\nendpoint = "https://a..b"\n', "hub.endpoint has no usable host", "rite it as https://HOST"),
    ],
)
def test_a_bad_settings_file(tmp_path: Path, text: str, said: str, remedy: str):
    (tmp_path / "bad.toml").write_text(text)
    defaults, finding = check_settings(ServeOptions({"server": {"port": 1}}, config=tmp_path / "bad.toml"))
    assert (finding.id, finding.severity) == ("settings-invalid", FindingSeverity.BROKEN)
    assert said in finding.message and remedy in finding.remedy
    assert [model.name for model in defaults.models] == ["cantor"], "the rest is looked at with the defaults"


def test_a_context_that_the_weights_were_not_made_for():
    (broken,) = models_checked(CANTOR, context_length=5000)
    assert broken.id == "settings-invalid" and broken.remedy == "Leave it out or lower it"


def test_too_many_threads_and_an_unfetched_model_are_advice(tmp_path: Path):
    reference = ModelSettings(name="a", path="hf:someone/something:file.gguf")
    _, (finding,) = check_models(Settings(hub=HubSettings(cache=str(tmp_path)), models=(reference,)))
    assert finding.severity is FindingSeverity.ADVICE and "antiphon models pull" in finding.remedy
    finding = check_threads(5, 4)
    assert finding.severity is FindingSeverity.ADVICE and finding.message == "5 threads on 4 processors"


@pytest.mark.parametrize("body", ["exit 127", "echo hello", "kill -9 $$"])
def test_an_interpreter_that_is_none(tmp_path: Path, body: str):
    python = setups.script(tmp_path / "python3", body)
    (broken,) = check_engine(Settings(engine=EngineSettings(interpreter=str(python))), [])
    assert broken.id == "interpreter-unusable" and "ANTIPHON_ENGINE_INTERPRETER" in broken.remedy


def test_an_interpreter_without_antiphon(examined: Examine, tmp_path: Path):
    python = setups.python_without(tmp_path, "msgspec")
    broken = only_broken(examined(env={"ANTIPHON_ENGINE_INTERPRETER": str(python)}))
    assert broken.id == "interpreter-unusable" and "No module named 'msgspec'" in broken.message


def test_no_place_for_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("antiphon.engines.host.runtime.SHORT_DIRECTORY", str(tmp_path / "absent"))
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    (broken,) = check_sockets()
    assert broken.id == "no-socket-place" and "XDG_RUNTIME_DIR" in broken.remedy


# --- parts that no set-up here reaches -----------------------------------------------------------------


def test_findings_of_a_dead_probe_are_kept_with_its_last_step():
    lines = [
        json.dumps(asdict(report_ok("python", "Python 3"))),
        "llama.cpp writes what it likes",
        "[1]",
        '{"step": "opening", "what": "two 2.0, /b.so"}',
    ]
    first, died = parse_probe_output("\n".join(lines).encode(), "signal SIGILL", "")
    assert first == report_ok("python", "Python 3")
    assert (died.id, died.message) == (
        "library-crashes",
        "opening the library of two 2.0, /b.so ends with signal SIGILL",
    )
    lines.append('{"step": "loading", "what": "/m.gguf"}')
    *_, died = parse_probe_output("\n".join(lines).encode(), "signal SIGABRT", "")
    assert died.id == "model-not-loadable" and "/m.gguf ends with signal SIGABRT" in died.message


def test_a_library_that_uses_all_is_well():
    finding = check_processor(["AVX", "AVX2", "OPENMP"], ["AVX", "AVX2"])
    assert finding.severity is FindingSeverity.OK and finding.message == "the library uses AVX AVX2"


def test_what_a_native_build_gains_is_said_where_it_was_measured():
    advice = check_processor(["AVX"], ["AVX", "AVX512", "AVX512_VNNI"])
    assert advice.id == "cpu-features-unused" and "not AVX512 AVX512_VNNI" in advice.message
    assert re.search(r"was \d\.\d+ times as fast", advice.message)
    advice = check_processor(["NEON"], ["NEON", "SVE"])
    assert "times as fast" not in advice.message, "what was not measured is not promised"


CARD = Device("CUDA0", "a card", 2_000_000_000, 8_000_000_000)


def devices_checked(
    *devices: Device, backends: tuple[str, ...] = (), gpus: tuple[tuple[str, str], ...] = (), layers: int = 0
) -> list[Finding]:
    return list(check_devices(devices, backends, gpus, layers))


def test_devices_are_listed_with_their_memory():
    (found,) = devices_checked(CARD, backends=("CUDA",), layers=9)
    assert found == report_ok("device", "CUDA0: a card, 2.0 of 8.0 GB free")
    assert devices_checked() == [], "nothing is said of a machine without any"


def test_a_gpu_that_the_library_does_not_use():
    (advice,) = devices_checked(gpus=(("an NVIDIA GPU", "cuda"),))
    assert (advice.id, advice.severity) == ("gpu-unused", FindingSeverity.ADVICE)
    assert "this machine has an NVIDIA GPU" in advice.message and "make native BACKEND=cuda" in advice.remedy
    (broken,) = devices_checked(gpus=(("an AMD GPU", "vulkan"),), layers=9)
    assert broken.severity is FindingSeverity.BROKEN and "gpu_layers = 9 needs one" in broken.message


def test_a_device_that_is_needed_and_not_there():
    (advice,) = devices_checked(backends=("CUDA",))
    assert (advice.id, advice.severity) == ("device-missing", FindingSeverity.ADVICE)
    (broken,) = devices_checked(backends=("CUDA",), layers=9)
    assert (broken.id, broken.severity) == ("device-missing", FindingSeverity.BROKEN)
    (broken,) = devices_checked(layers=9)
    assert broken.severity is FindingSeverity.BROKEN and "has no GPU" in broken.message


def test_gpus_are_found_by_their_vendors(tmp_path: Path):
    cards, nvidia = tmp_path / "drm", tmp_path / "nvidia"
    assert find_gpus(cards, nvidia) == ()
    for name, vendor in {"card0": "0x1002", "card1": "0x1af4", "card0-DP-1": ""}.items():
        (cards / name / "device").mkdir(parents=True)
        (cards / name / "device" / "vendor").write_text(f"{vendor}\n")
    assert find_gpus(cards, nvidia) == (("an AMD GPU", "vulkan"),)
    (nvidia / "0000:01:00.0").mkdir(parents=True)
    assert find_gpus(cards, nvidia) == (("an AMD GPU", "vulkan"), ("an NVIDIA GPU", "cuda"))


def test_features_are_read_from_either_kind_of_processor(tmp_path: Path):
    (tmp_path / "x86").write_text("processor\t: 0\nflags\t\t: fpu pni avx avx2 fma avx512f\n")
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: fp asimd asimddp\n")
    assert list_processor_features(tmp_path / "x86") == ("SSE3", "AVX", "AVX2", "FMA", "AVX512")
    assert list_processor_features(tmp_path / "arm") == ("NEON", "DOTPROD")
    assert list_processor_features(tmp_path / "none") == ()


def test_memory_is_what_the_limits_of_the_user_allow(monkeypatch: pytest.MonkeyPatch):
    assert measure_free_memory() > 1_000_000
    limits = {resource.RLIMIT_AS: (1_000_000, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert measure_free_memory() == 1_000_000


def test_the_page_has_one_section_for_each_finding():
    headings = re.findall(r"^### `([a-z-]+)`$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(REMEDIES)
