"""Takes the right to pass over the modes of files from this thread, which root has."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = 0x20080522
"""Version 3 of the kernel's capability sets, which have 64 bits in two parts."""

DAC_OVERRIDE, DAC_READ_SEARCH = 1 << 1, 1 << 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def obey_file_modes() -> Iterator[None]:
    """While the context lasts, a file of mode 0 cannot be opened, whoever runs the tests."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(VERSION, 0), (_Sets * 2)()
    assert libc.capget(ctypes.byref(header), sets) == 0, os.strerror(ctypes.get_errno())
    effective = sets[0].effective
    try:
        sets[0].effective = effective & ~(DAC_OVERRIDE | DAC_READ_SEARCH)
        assert libc.capset(ctypes.byref(header), sets) == 0, os.strerror(ctypes.get_errno())
        yield
    finally:
        sets[0].effective = effective
        assert libc.capset(ctypes.byref(header), sets) == 0, os.strerror(ctypes.get_errno())
