"""Compile a function by numba into machine code that can be kept: a shared library, or an object without a linker.

The code refers to nothing of numba's. Numba's own helpers, which compiled code calls only to report an exception of
Python's, end the process instead: none of the functions compiled here raises.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

_LINKERS = ("cc", "gcc", "clang", "ld", "ld.lld")
_HELPER = re.compile(r"^declare (.*@\"?(?:numba_|NRT_).*)$", re.MULTILINE)
_loaded: list[Any] = []  # objects go with what they were loaded by


class MachineCode:
    """A compiled function: at an address in this process, and as what can be kept."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.address: int = kernel.address

    def file(self, entry: str) -> tuple[bytes, bool]:
        """Return (content, whether it is a shared library) of a file that has the function as the symbol `entry`."""
        ends = r"define \1 {\n  call void @abort()\n  unreachable\n}"
        text = _HELPER.sub(ends, str(self._kernel._library._final_module))
        if " @abort()" in text and "declare void @abort()" not in text:
            text += "\ndeclare void @abort()\n"
        module = llvm.parse_assembly(text)
        module.get_function(self._kernel._wrapper_name).name = entry
        module.verify()
        content = _target_machine().emit_object(module)
        linked = _link(content)
        return (content, False) if linked is None else (linked, True)


def compile_function(function: Callable[..., Any], arguments: Sequence[Any], returns: str) -> MachineCode:
    """Compile a function as one of C's; arguments are numba's types or their names. Raises what numba raises."""
    from numba import types
    from numba.core.ccallback import CFunc

    argument_types = tuple(
        getattr(types, argument) if isinstance(argument, str) else argument for argument in arguments
    )
    kernel = CFunc(function, (argument_types, getattr(types, returns)), {}, {})
    kernel.compile()
    return MachineCode(kernel)


def load_object(content: bytes, entry: str) -> int:
    """Return the address of the symbol `entry` in an object, which stays valid."""
    _initialize()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    _loaded.append(engine)
    return int(engine.get_function_address(entry))


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _target_machine() -> llvm.TargetMachine:
    """Return a target machine that emits position-independent code for this processor."""
    from numba.core.registry import cpu_target

    triple, processor, features = cpu_target.target_context.codegen().magic_tuple()
    return llvm.Target.from_triple(triple).create_target_machine(cpu=processor, features=features, opt=3, reloc="pic")


class _Symbol(ctypes.Structure):
    """The dynamic linker's description of an address: Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@cache
def _libc() -> list[str]:
    """Return the file of this process's C library, if it has one that says where it is.

    A library that is linked against it asks for today's memcpy. One that names no version gets the oldest one, which
    takes 1.4 times as long for 16 MiB where two ranks copy at once.
    """
    process, symbol = ctypes.CDLL(None), _Symbol()
    succeeded = process.dladdr(ctypes.cast(process.memcpy, ctypes.c_void_p), ctypes.byref(symbol))
    return [os.fsdecode(symbol.file)] if succeeded and symbol.file else []


def _link(content: bytes) -> bytes | None:
    """Return the shared library that a linker makes of an object; None where there is no linker that does."""
    with tempfile.TemporaryDirectory() as place:
        source, library = Path(place, "kernel.o"), Path(place, "kernel.so")
        source.write_bytes(content)
        for linker in filter(None, map(shutil.which, _LINKERS)):
            options = ["-nostdlib"] if Path(linker).name in ("cc", "gcc", "clang") else []
            for libraries in (_libc(), []):
                command = [linker, "-shared", *options, "-o", str(library), str(source), *libraries]
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    return library.read_bytes()
    return None
