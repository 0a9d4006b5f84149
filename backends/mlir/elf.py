"""Loads ELF objects into this process without a linker.

The execution engine can dump the object it compiled but cannot load one, and a machine without a C
compiler has no linker either. Objects of the JIT's large code model need few relocations: 64-bit
absolute addresses, and distances within the object. So a cached kernel starts in well under a
millisecond, without importing MLIR. Only x86-64 code runs here. Objects of another machine can be
placed in the memory of an emulator, with a function for their relocations.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

# objects of this machine's JIT can be loaded here
IS_SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"

X86_64 = 62  # ELF's number of the machine
SHT_RELA, SHT_SYMTAB, SHT_NOBITS = 4, 2, 8
SHF_WRITE, SHF_ALLOC = 1, 2
SHN_UNDEF, SHN_ABS, SHN_LORESERVE = 0, 0xFFF1, 0xFF00
R_64, R_PC32, R_PLT32, R_PC64 = 1, 2, 4, 24
STB_LOCAL, STT_FUNC = 0, 2

Memory = mmap.mmap | bytearray
Resolve = Callable[[str], int | None]  # the address of a symbol that an object does not define
Relocate = Callable[[Memory, int, int, int, int], None]


class LoadError(Exception):
    """The bytes are not an object that this loader supports."""


@dataclass(frozen=True)
class Section:
    """One entry of the section header table."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


@dataclass
class Image:
    """A loaded object. Its code exists as long as this object."""

    addresses: dict[str, int]
    memory: mmap.mmap


def load(data: bytes, resolve: Resolve) -> Image:
    """Load an object into memory; `resolve` returns addresses of symbols it does not define."""
    try:
        made = Object(data)
        memory = mmap.mmap(-1, made.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        exported = made.place(memory, base, resolve)
    except (struct.error, ValueError, IndexError, OSError, OverflowError) as error:
        raise LoadError(f"malformed object: {error}") from error
    if made.frozen:
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.mprotect(
            ctypes.c_void_p(base), ctypes.c_size_t(made.frozen), mmap.PROT_READ | mmap.PROT_EXEC
        )
        if done != 0:
            raise LoadError("this system does not allow a process to make memory executable")
    return Image(exported, memory)


class Object:
    """An object file, and where its sections are in memory: code and constants first, then data.

    Attributes:
        places: offsets of sections in memory, by number.
        frozen: size of the read-only part.
        size: bytes of memory.
    """

    def __init__(self, data: bytes, machine: int = X86_64) -> None:
        if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", data, 16) != (1, machine):
            raise LoadError("not a relocatable ELF object of this machine")
        self.data = data
        (start,) = struct.unpack_from("<Q", data, 40)
        _, count, names = struct.unpack_from("<HHH", data, 58)
        raw = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]
        strings = raw[names][4]
        self.sections = [
            Section(_text(data, strings + n), kind, flags, off, size, link, info, max(align, 1))
            for n, kind, flags, _, off, size, link, info, align, _ in raw
        ]
        self.places: dict[int, int] = {}
        end = self.frozen = 0
        for writable in (0, SHF_WRITE):
            for i, s in enumerate(self.sections):
                is_loaded = s.flags & SHF_ALLOC and s.flags & SHF_WRITE == writable
                # .eh_frame is omitted, because nothing unwinds through a kernel
                if is_loaded and s.name != ".eh_frame":
                    self.places[i] = -(-end // s.align) * s.align
                    end = self.places[i] + s.size
            if not writable:
                self.frozen = end = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        self.size = max(end, 1)

    def place(
        self, memory: Memory, base: int, resolve: Resolve, relocate: Relocate | None = None
    ) -> dict[str, int]:
        """Fill memory that starts at address `base`. Returns addresses of exported functions."""
        for i, at in self.places.items():
            s = self.sections[i]
            if s.kind != SHT_NOBITS:
                memory[at : at + s.size] = self.data[s.offset : s.offset + s.size]
        symbols = next((s for s in self.sections if s.kind == SHT_SYMTAB), None)
        if symbols is None:
            raise LoadError("no symbol table")
        strings = self.sections[symbols.link].offset
        names: list[str] = []
        values: list[int | None] = []  # addresses of symbols
        exported: dict[str, int] = {}
        for at in range(symbols.offset, symbols.offset + symbols.size, 24):
            start, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", self.data, at)
            name = _text(self.data, strings + start)
            if section >= SHN_LORESERVE and section != SHN_ABS:
                raise LoadError(f"symbol {name!r} is in no section")
            address = value if section == SHN_ABS else None
            if section in self.places:
                address = base + self.places[section] + value
            if address is not None and info >> 4 != STB_LOCAL and info & 15 == STT_FUNC:
                exported[name] = address
            names.append(name)
            values.append(address)
        for s in self.sections:
            if s.kind != SHT_RELA or s.info not in self.places:
                continue
            for at in range(s.offset, s.offset + s.size, 24):
                offset, info, addend = struct.unpack_from("<QQq", self.data, at)
                index, kind = info >> 32, info & 0xFFFFFFFF
                target = values[index]
                if target is None:
                    target = values[index] = resolve(names[index])
                if target is None:
                    raise LoadError(f"unknown symbol {names[index]!r}")
                where = self.places[s.info] + offset
                (relocate or _relocate)(memory, where, base + where, kind, target + addend)
        return exported


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _relocate(memory: Memory, where: int, place: int, kind: int, value: int) -> None:
    if kind == R_64:
        struct.pack_into("<Q", memory, where, value & (2**64 - 1))
    elif kind == R_PC64:
        struct.pack_into("<q", memory, where, value - place)
    elif kind in (R_PC32, R_PLT32):
        if not -(2**31) <= value - place < 2**31:
            raise LoadError("a 32-bit relocation is out of range")
        struct.pack_into("<i", memory, where, value - place)
    else:
        raise LoadError(f"relocation type {kind} is not supported")
