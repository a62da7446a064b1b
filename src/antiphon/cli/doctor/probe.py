"""`python -m antiphon.cli.doctor.probe`: the checks of `antiphon doctor` that run native code, which may
crash.

It opens the engine's library, and loads models if the input lists any. Its input is one line of JSON: the
library setting, the threads and the models. It prints findings as lines of JSON. Before each step that may
crash, it prints a line that names the step.
"""

import json
import logging
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from antiphon.cli.doctor.findings import Finding, FindingSeverity, report_ok, report_problem, to_finding
from antiphon.engines.base import LoadSpec
from antiphon.engines.llama.embedding import load_any
from antiphon.engines.llama.libllama.devices import list_backends, list_devices
from antiphon.engines.llama.libllama.library import Library, LibraryFile, find_installed, find_library
from antiphon.engines.llama.machine import choose_thread_count, list_usable_cpus, prepare_environment
from antiphon.engines.llama.placement import Device
from antiphon.errors import AntiphonError, LibraryError
from antiphon.processes.ipc import (
    to_line,  # imported like an engine host does, so that a missing package is found
)

CPUINFO = Path("/proc/cpuinfo")

CARDS = Path("/sys/class/drm")
NVIDIA_CARDS = Path("/proc/driver/nvidia/gpus")
"""Where Linux lists graphics processors; NVIDIA's driver lists those without a display too."""

NVIDIA = "0x10de"
GPU_VENDORS = {NVIDIA: ("an NVIDIA GPU", "cuda"), "0x1002": ("an AMD GPU", "vulkan")}
"""The backend to build for each vendor of PCI devices. Intel's GPUs share the processor's memory and gain
little."""

GIGABYTE = 1e9

NAMES = {
    "pni": "SSE3",
    "ssse3": "SSSE3",
    "avx": "AVX",
    "avx2": "AVX2",
    "f16c": "F16C",
    "fma": "FMA",
    "bmi2": "BMI2",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "asimd": "NEON",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}
"""The names of features in the kernel's flags, with the library's names."""

DECISIVE = frozenset({"AVX", "AVX2", "FMA", "F16C", "NEON", "DOTPROD"})
"""Without these a model is many times slower; the others matter less."""


MEASURED_GAIN = (
    "where it was measured, on two cores with 0.5 B parameters in Q8_0, a library built for AVX-512 was 1.3 "
    "times as fast with eight requests at once, and with one no faster"
)
"""The gain of a native build over the wheel, whose widest instructions are AVX2: benchmarks/RESULTS.md."""


def main() -> None:
    """Runs every check once."""
    order = json.loads(sys.stdin.readline())
    logging.disable()  # the findings report which libraries are passed over
    prepare_environment()
    print_finding(report_ok("python", f"Python {platform.python_version()}, {sys.executable}"))
    library = open_library(order["library"])
    if library is not None:
        print_finding(check_processor(library.list_cpu_features(), read_processor_features()))
        _write({"step": "opening", "what": f"{library.path}, its devices"})
        devices, requested = list_devices(library), max(order["gpu_layers"], default=0)
        for finding in check_devices(devices, list_backends(library), find_gpus(), requested):
            print_finding(finding)
    threads = [each or choose_thread_count() for each in order["threads"]]
    print_finding(check_threads(max(threads, default=choose_thread_count()), len(list_usable_cpus())))
    if library is not None:
        for values in order["models"]:
            load(LoadSpec(**values))


def print_finding(finding: Finding) -> None:
    """Prints a finding as a line."""
    _write(asdict(finding))


def _write(line: dict[str, object]) -> None:
    sys.stdout.buffer.write(to_line(line))
    sys.stdout.buffer.flush()


def open_library(explicit: str | None) -> Library | None:
    """Opens the first usable library, as the engine does; None without a library."""
    passed: list[tuple[LibraryFile, str]] = []
    for candidate in list_candidates(explicit):
        _write({"step": "opening", "what": f"{candidate.origin}, {candidate.path}"})
        try:
            library, _ = find_library(explicit, iter([candidate]))
        except LibraryError as error:
            passed.append((candidate, error.message))
            continue
        for other, why in passed:
            message = f"{other.origin}, {other.path} comes first and is passed over: {why}"
            print_finding(report_problem("library-passed-over", message, FindingSeverity.ADVICE))
        why = "the first that can be used" if passed else "the first that was found"
        why = "the setting names it" if explicit else why
        description = f"{candidate.origin}, {candidate.path} ({why})"
        message = f"{library.describe_version()}, from {description}; its binary interface is known"
        print_finding(report_ok("library", message))
        return library
    if passed:
        print_finding(to_finding("library-unusable", LibraryError(passed[-1][1])))
    else:
        print_finding(report_problem("library-missing", "no llama.cpp library is installed"))
    return None


def list_candidates(explicit: str | None) -> Iterator[LibraryFile]:
    """Yields the libraries that the engine would try, in order."""
    if explicit:
        yield LibraryFile(Path(explicit), "the library setting")
    else:
        yield from find_installed()


def check_processor(uses: Sequence[str], has: Sequence[str]) -> Finding:
    """Compares the features of the processor with those that the library uses."""
    used = " ".join(feature for feature in uses if feature in has) or "nothing special"
    unused_features = [feature for feature in has if feature not in uses]
    if not unused_features:
        return report_ok("cpu", f"the library uses {used}")
    gain = f"; {MEASURED_GAIN}" if "AVX512" in unused_features else ""
    gain = "; without these it is several times slower" if DECISIVE & set(unused_features) else gain
    message = f"the library uses {used} of this processor, not {' '.join(unused_features)}{gain}"
    return report_problem("cpu-features-unused", message, FindingSeverity.ADVICE)


def check_devices(
    devices: Sequence[Device], backends: Sequence[str], gpus: Sequence[tuple[str, str]], requested: int
) -> Iterator[Finding]:
    """Compares the devices that the library finds with those of the machine. `backends`: what the library was
    built for. `gpus`: products of the machine, each with the backend to build for it. `requested`: the most
    layers that a setting puts on devices."""
    for device in devices:
        size = f"{device.free / GIGABYTE:.1f} of {device.total / GIGABYTE:.1f} GB free"
        yield report_ok("device", f"{device.name}: {device.description}, {size}")
    if devices or not (backends or gpus or requested):
        return
    standing = FindingSeverity.BROKEN if requested else FindingSeverity.ADVICE
    wanted = f", and gpu_layers = {requested} needs one" if requested else ""
    if backends:
        message = f"the library was built for {' and '.join(backends)} and finds no device{wanted}"
        yield report_problem("device-missing", message, standing)
        return
    if not gpus:
        message = f"the library computes on the processor alone, and this machine shows no GPU{wanted}"
        yield report_problem("device-missing", message, standing)
    for product, backend in gpus:
        message = f"this machine has {product}, and the library computes on the processor alone{wanted}"
        finding = report_problem("gpu-unused", message, standing)
        yield replace(finding, remedy=finding.remedy.format(backend=backend))


def find_gpus(cards: Path = CARDS, nvidia: Path = NVIDIA_CARDS) -> tuple[tuple[str, str], ...]:
    """Returns the kinds of graphics processors that Linux shows and that are worth a build, each with the
    backend to build."""
    vendors = {path.read_text("ascii").strip() for path in cards.glob("card*/device/vendor")}
    if any(nvidia.glob("*")):
        vendors.add(NVIDIA)
    return tuple(GPU_VENDORS[vendor] for vendor in sorted(vendors) if vendor in GPU_VENDORS)


def check_threads(threads: int, processors: int) -> Finding:
    """Compares the threads of the model with the most threads with the processors."""
    message = f"{threads} threads on {processors} processors"
    if threads > processors:
        return report_problem("threads-too-many", message, FindingSeverity.ADVICE)
    return report_ok("threads", message)


def load(spec: LoadSpec) -> None:
    """Loads one model and closes it."""
    _write({"step": "loading", "what": spec.model})
    try:
        load_any(spec).close()
    except AntiphonError as error:
        print_finding(to_finding("model-not-loadable", error))
        return
    print_finding(report_ok("loading", f"{Path(spec.model).name} loads"))


def read_processor_features(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Returns the processor features that a library can use, in the table's order; empty where the system
    does not list them."""
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ()
    flags: set[str] = set()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags |= set(value.split())
    return tuple(name for flag, name in NAMES.items() if flag in flags)


if __name__ == "__main__":
    main()
