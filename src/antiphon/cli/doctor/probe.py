"""`python -m antiphon.cli.doctor.probe`: checks of `antiphon doctor` that run native code, which may crash.

It opens the engine's library, and loads the models of its input. The input is one line of JSON: the library
setting, the threads and the models. It prints each finding as a line of JSON. Before a step that may crash,
it prints a line with the step's name.
"""

import logging
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphon.cli.doctor.findings import (
    Finding,
    FindingSeverity,
    ProbeInput,
    report_ok,
    report_problem,
    to_finding,
)
from antiphon.domain.values import asdict, replace
from antiphon.engines.base import LoadSpec
from antiphon.engines.llama.embedding import load_any
from antiphon.engines.llama.libllama.library import Library, LibraryFile, find_installed, find_library
from antiphon.engines.llama.libllama.placement import Device, list_backends, list_devices
from antiphon.engines.llama.machine import choose_thread_count, list_usable_cpus, prepare_environment
from antiphon.errors import AntiphonError, LibraryError
from antiphon.processes.ipc import (  # as an engine host does, so that a missing package is found
    from_line,
    to_line,
)

CPUINFO = Path("/proc/cpuinfo")

CARDS = Path("/sys/class/drm")
NVIDIA_CARDS = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's list of graphics processors. It includes those without a display."""

NVIDIA = "0x10de"
GPU_VENDORS = {NVIDIA: ("an NVIDIA GPU", "cuda"), "0x1002": ("an AMD GPU", "vulkan")}
"""The product and the backend for each vendor of PCI devices. Intel's GPUs bring little speed."""

GIGABYTE = 1e9

FEATURE_NAMES = {
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
"""The library's names of processor features, by the kernel's names."""

ESSENTIAL_FEATURES = frozenset({"AVX", "AVX2", "FMA", "F16C", "NEON", "DOTPROD"})
"""Features without which a model is many times slower."""

MEASURED_GAIN = (
    "measured on two cores with 0.5 B parameters in Q8_0, a library for AVX-512 was 1.3 times as fast with "
    "eight simultaneous requests, and no faster with one"
)
"""The speed of a native build, compared with the wheel, which uses AVX2: benchmarks/RESULTS.md."""


def main() -> None:
    """Runs every check once."""
    probe_input = from_line(sys.stdin.buffer.readline(), ProbeInput)
    logging.disable()  # the findings report the skipped libraries
    prepare_environment()
    print_finding(report_ok("python", f"Python {platform.python_version()}, {sys.executable}"))
    library = open_library(probe_input.library)
    if library is not None:
        print_finding(check_processor(library.list_cpu_features(), list_processor_features()))
        _write_line({"step": "opening", "what": f"{library.path}, its devices"})
        devices, requested_layers = list_devices(library), max(probe_input.gpu_layers, default=0)
        for finding in check_devices(devices, list_backends(library), find_gpus(), requested_layers):
            print_finding(finding)
    threads = [count or choose_thread_count() for count in probe_input.threads]
    print_finding(check_threads(max(threads, default=choose_thread_count()), len(list_usable_cpus())))
    if library is not None:
        for spec in probe_input.models:
            check_loading(spec)


def print_finding(finding: Finding) -> None:
    """Prints a finding as a line."""
    _write_line(asdict(finding))


def _write_line(fields: dict[str, object]) -> None:
    sys.stdout.buffer.write(to_line(fields))
    sys.stdout.buffer.flush()


def open_library(configured_path: str | None) -> Library | None:
    """Opens the first usable library, as the engine does. Prints findings. Returns None if no library is
    usable. `configured_path`: the library that the settings name."""
    rejected: list[tuple[LibraryFile, str]] = []
    for candidate in list_candidates(configured_path):
        _write_line({"step": "opening", "what": f"{candidate.origin}, {candidate.path}"})
        try:
            library, _ = find_library(configured_path, iter([candidate]))
        except LibraryError as error:
            rejected.append((candidate, error.message))
            continue
        for rejected_library, problem in rejected:
            message = (
                f"{rejected_library.origin}, {rejected_library.path} comes first but is unusable: {problem}"
            )
            print_finding(report_problem("library-passed-over", message, FindingSeverity.ADVICE))
        reason = "the first usable library" if rejected else "the first library"
        reason = "the setting names it" if configured_path else reason
        description = f"{candidate.origin}, {candidate.path} ({reason})"
        message = f"{library.describe_version()}, from {description}; its binary interface is supported"
        print_finding(report_ok("library", message))
        return library
    if rejected:
        print_finding(to_finding("library-unusable", LibraryError(rejected[-1][1])))
    else:
        print_finding(report_problem("library-missing", "no llama.cpp library is installed"))
    return None


def list_candidates(configured_path: str | None) -> Iterator[LibraryFile]:
    """Yields the libraries that the engine would try, in order."""
    if configured_path:
        yield LibraryFile(Path(configured_path), "the library setting")
    else:
        yield from find_installed()


def check_processor(library_features: Sequence[str], processor_features: Sequence[str]) -> Finding:
    """Compares the features of the processor with the features that the library uses."""
    used_features = [feature for feature in library_features if feature in processor_features]
    used_text = " ".join(used_features) or "nothing special"
    unused_features = [feature for feature in processor_features if feature not in library_features]
    if not unused_features:
        return report_ok("cpu", f"the library uses {used_text}")
    consequence = f"; {MEASURED_GAIN}" if "AVX512" in unused_features else ""
    consequence = (
        "; without these it is several times slower"
        if ESSENTIAL_FEATURES & set(unused_features)
        else consequence
    )
    message = f"the library uses {used_text} of this processor, not {' '.join(unused_features)}{consequence}"
    return report_problem("cpu-features-unused", message, FindingSeverity.ADVICE)


def check_devices(
    devices: Sequence[Device], backends: Sequence[str], gpus: Sequence[tuple[str, str]], requested_layers: int
) -> Iterator[Finding]:
    """Compares the devices that the library finds with the devices of the machine.

    `backends`: the library's backends. `gpus`: products of the machine, each with the backend to build.
    `requested_layers`: the largest number of gpu_layers in the settings.
    """
    for device in devices:
        size = f"{device.free / GIGABYTE:.1f} of {device.total / GIGABYTE:.1f} GB free"
        yield report_ok("device", f"{device.name}: {device.description}, {size}")
    if devices or not (backends or gpus or requested_layers):
        return
    severity = FindingSeverity.BROKEN if requested_layers else FindingSeverity.ADVICE
    request_note = f", and gpu_layers = {requested_layers} needs one" if requested_layers else ""
    if backends:
        message = f"the library was built for {' and '.join(backends)} and finds no device{request_note}"
        yield report_problem("device-missing", message, severity)
        return
    if not gpus:
        message = f"the library uses only the processor, and this machine has no GPU{request_note}"
        yield report_problem("device-missing", message, severity)
    for product, backend in gpus:
        message = f"this machine has {product}, but the library uses only the processor{request_note}"
        finding = report_problem("gpu-unused", message, severity)
        yield replace(finding, remedy=finding.remedy.format(backend=backend))


def find_gpus(cards: Path = CARDS, nvidia: Path = NVIDIA_CARDS) -> tuple[tuple[str, str], ...]:
    """Returns the vendors' graphics processors that a build can use, each with the backend to build."""
    vendors = {path.read_text("ascii").strip() for path in cards.glob("card*/device/vendor")}
    if any(nvidia.glob("*")):
        vendors.add(NVIDIA)
    return tuple(GPU_VENDORS[vendor] for vendor in sorted(vendors) if vendor in GPU_VENDORS)


def check_threads(threads: int, processors: int) -> Finding:
    """Compares the largest number of threads of a model with the number of processors."""
    message = f"{threads} threads on {processors} processors"
    if threads > processors:
        return report_problem("threads-too-many", message, FindingSeverity.ADVICE)
    return report_ok("threads", message)


def check_loading(spec: LoadSpec) -> None:
    """Loads one model, closes it, and prints a finding."""
    _write_line({"step": "loading", "what": spec.model})
    try:
        load_any(spec).close()
    except AntiphonError as error:
        print_finding(to_finding("model-not-loadable", error))
        return
    print_finding(report_ok("loading", f"{Path(spec.model).name} loads"))


def list_processor_features(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Returns the processor's features that a library can use; empty if the system does not list them."""
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ()
    flags: set[str] = set()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags |= set(value.split())
    return tuple(name for flag, name in FEATURE_NAMES.items() if flag in flags)


if __name__ == "__main__":
    main()
