"""What this machine's processor can do, in the words that llama.cpp has for it. Asks the system only."""

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

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
"""The kernel's flags and the library's names of them."""

DECISIVE = frozenset({"AVX", "AVX2", "FMA", "F16C", "NEON", "DOTPROD"})
"""Without these a model runs at a fraction of its speed; the others bring less."""


MEASURED_GAIN = (
    "where it was measured, on two cores with 0.5 B parameters in Q8_0, a library built for AVX-512 was 1.3 "
    "times as fast with eight requests at once, and with one no faster"
)
"""Of a native build over the wheel, whose widest instructions are AVX2: benchmarks/RESULTS.md."""


def processor_features(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """What the processor has of what a library can use, in the table's order; nothing where the system does
    not say."""
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
