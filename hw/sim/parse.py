"""AMDGPU assembly text to programs: instructions, labels, kernel descriptor, metadata and source lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from .errors import AssemblyError

__all__ = ["Argument", "Instruction", "Kernel", "Program", "parse_file", "parse_text", "split_operands"]

_LABEL = re.compile(r"^([\w.$@]+):")
_TARGET = re.compile(r'(?:\.amdgcn_target\s+"[^"]*?|amdhsa\.target:\s*\S*?)(gfx[0-9a-f]+)([^"\s]*)')
_FILE = re.compile(r'\.file\s+(\d+)\s+(?:"([^"]*)"\s+)?"([^"]*)"')
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_DESCRIPTOR = re.compile(r"\.amdhsa_(\w+)\s+(\S.*)")
_NUMBER = re.compile(r"-?(0x[0-9a-fA-F]+|\d+)$")

#: Modifiers that are single words; any other first word of an operand list is an operand.
FLAGS = frozenset(
    {
        *("offen", "idxen", "glc", "slc", "dlc", "sc0", "sc1", "scc", "nt", "lds", "gds", "tfe", "addr64"),
        *("clamp", "row_mirror", "row_half_mirror"),
    }
)
_COMMENT = re.compile(r"\s*(?:;|//).*$")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: operands as written, modifiers split off, and where it stands."""

    index: int
    mnemonic: str
    operands: tuple[str, ...]
    modifiers: dict[str, str]
    line: int
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument of the metadata; offset and size in bytes."""

    offset: int
    size: int
    kind: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the file. `descriptor` holds the .amdhsa_ directives that are numbers."""

    name: str
    target: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    descriptor: dict[str, int]
    metadata: dict[str, str]
    arguments: tuple[Argument, ...]
    workgroup: tuple[int, int, int] | None

    @property
    def lds_bytes(self) -> int:
        """Static LDS of one workgroup."""
        return self.descriptor.get("group_segment_fixed_size", 0)

    @property
    def scratch_bytes(self) -> int:
        """Scratch of one lane."""
        return self.descriptor.get("private_segment_fixed_size", 0)

    @property
    def kernarg_bytes(self) -> int:
        end = max((a.offset + a.size for a in self.arguments), default=0)
        return max(self.descriptor.get("kernarg_size", 0), int(self.metadata.get("kernarg_segment_size", 0)), end)


@dataclass(frozen=True, slots=True)
class Program:
    """All kernels of one assembly file."""

    target: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    path: str = ""

    def kernel(self, name: str | None = None) -> Kernel:
        """The kernel of that name, or the only one."""
        if name is None:
            if len(self.kernels) != 1:
                raise AssemblyError(f"the file has {len(self.kernels)} kernels, name one of: {', '.join(self.kernels)}")
            return next(iter(self.kernels.values()))
        if name not in self.kernels:
            raise AssemblyError(f"no kernel {name}; the file has: {', '.join(self.kernels)}")
        return self.kernels[name]


def parse_file(path_or_text: str | Path) -> Program:
    """A Program from a path, or from the text itself if it holds a line break."""
    if isinstance(path_or_text, str) and "\n" in path_or_text:
        return parse_text(path_or_text)
    path = Path(path_or_text)
    if not path.is_file():
        raise AssemblyError(f"{path}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise AssemblyError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise AssemblyError(f"{path}: not a text file; the simulator takes assembly, not binaries") from None
    return parse_text(text, str(path))


def parse_text(text: str, path: str = "") -> Program:
    """A Program from assembly text.

    Raises AssemblyError where there is no target or no kernel.
    """
    found = _TARGET.search(text)
    if found is None:
        raise AssemblyError(f"{path or 'text'}: no .amdgcn_target line, so the target is unknown")
    target = found.group(1)
    descriptors = _descriptors(text)
    metadata = _metadata(text)
    bodies = _bodies(text, set(descriptors) | set(metadata))
    kernels = {}
    for name, (instructions, labels) in bodies.items():
        fields, arguments, workgroup = metadata.get(name, ({}, (), None))
        kernels[name] = Kernel(
            name, target, instructions, labels, descriptors.get(name, {}), fields, arguments, workgroup
        )
    if not kernels:
        raise AssemblyError(f"{path or 'text'}: no kernel with a body")
    return Program(target, kernels, path)


def _bodies(text: str, names: set[str]) -> dict[str, tuple[tuple[Instruction, ...], dict[str, int]]]:
    files: dict[str, str] = {}
    bodies: dict[str, tuple[tuple[Instruction, ...], dict[str, int]]] = {}
    current: list[Instruction] = []
    labels: dict[str, int] = {}
    name, source, in_block_comment = "", "", False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("/*") or in_block_comment:
            in_block_comment = "*/" not in line
            continue
        if not line or line[0] in ";#" or line.startswith("//"):
            continue
        if (label := _LABEL.match(line)) is not None:
            if label.group(1) in names:
                name, current, labels, source = label.group(1), [], {}, ""
            elif name and label.group(1).isdigit():  # a local label: several may have one number
                labels[f"{label.group(1)}@{len(current)}"] = len(current)
            elif name:
                labels[label.group(1)] = len(current)
            line = line[label.end() :].strip()
            if not line or line[0] == ";":
                continue
        if line.startswith("."):
            if (where := _LOC.match(line)) is not None:
                source = f"{files.get(where.group(1), '?')}:{where.group(2)}"
            elif (entry := _FILE.match(line)) is not None:
                files[entry.group(1)] = entry.group(3)
            elif name and (line.startswith((".section", ".size", ".end_amdhsa", ".amdhsa_kernel"))):
                bodies[name] = (tuple(current), labels)
                name = ""
            continue
        if name:
            current.append(_instruction(len(current), line, number, source))
    if name:
        bodies[name] = (tuple(current), labels)
    return {k: v for k, v in bodies.items() if v[0]}


def _instruction(index: int, line: str, number: int, source: str) -> Instruction:
    text = _COMMENT.sub("", line)
    mnemonic, _, rest = text.partition(" ") if " " in text else text.partition("\t")
    operands, modifiers = split_operands(rest.strip())
    return Instruction(index, mnemonic.strip(), operands, modifiers, number, source, " ".join(text.split()))


def split_operands(text: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Operands and modifiers of the part behind the mnemonic.

    >>> split_operands("v[0:1], v2, s[4:7], 0 offen offset:16")
    (('v[0:1]', 'v2', 's[4:7]', '0'), {'offen': '', 'offset': '16'})
    """
    operands: list[str] = []
    modifiers: dict[str, str] = {}
    for part in _split(text, ","):
        words = _split(part.strip(), " ")
        for position, word in enumerate(words):
            key, colon, value = word.partition(":")
            if word in FLAGS:
                modifiers[word] = ""
            elif colon and key.isidentifier():
                modifiers[key] = value
            elif position == 0 or word != "&":
                operands.append(word)
    return tuple(operands), modifiers


def _split(text: str, separator: str) -> list[str]:
    parts, depth, start = [], 0, 0
    bar = False
    for place, char in enumerate(text):
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "|":
            bar = not bar
        elif char == separator and depth == 0 and not bar:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return [p for p in parts if p.strip()]


def _descriptors(text: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for block in re.finditer(r"\.amdhsa_kernel\s+(\S+)\n(.*?)\.end_amdhsa_kernel", text, re.S):
        fields = {}
        for key, value in _DESCRIPTOR.findall(block.group(2)):
            if _NUMBER.match(value.strip()):
                fields[key] = int(value, 0)
        found[block.group(1)] = fields
    return found


def _metadata(
    text: str,
) -> dict[str, tuple[dict[str, str], tuple[Argument, ...], tuple[int, int, int] | None]]:
    """Kernel entries of the metadata by name; line based, which is enough for what LLVM prints."""
    block = re.search(r"\.amdgpu_metadata\n(.*?)\.end_amdgpu_metadata", text, re.S)
    if block is None:
        return {}
    found = {}
    body = re.search(r"amdhsa\.kernels:\n(.*?)(?:^\S|\Z)", block.group(1), re.S | re.M)
    for entry in re.split(r"^  - ", body.group(1) if body else "", flags=re.M)[1:]:
        lines = ("    " + entry).splitlines()
        fields = {
            m.group(1): m.group(2).strip("'\"") for ln in lines if (m := re.match(r"^ {4}\.(\w+):\s*(\S.*)$", ln))
        }
        arguments = _arguments(lines)
        sizes = _list(lines, "reqd_workgroup_size")
        name = fields.get("name", "")
        found[name] = (fields, arguments, (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 else None)
    return found


def _list(lines: list[str], key: str) -> list[int]:
    values: list[int] = []
    inside = False
    for line in lines:
        if re.match(rf"^ {{4}}\.{key}:\s*$", line):
            inside = True
        elif inside and (m := re.match(r"^ {6}- (\d+)\s*$", line)):
            values.append(int(m.group(1)))
        elif inside:
            break
    return values


def _arguments(lines: list[str]) -> tuple[Argument, ...]:
    entries: list[dict[str, str]] = []
    inside = False
    for line in lines:
        if re.match(r"^ {4}\.args:", line):
            inside = True
        elif inside and re.match(r"^ {4}\.", line):
            break
        elif inside and (m := re.match(r"^ {6}(- | {2})\.(\w+):\s*(\S+)", line)):
            if m.group(1) == "- ":
                entries.append({})
            entries[-1][m.group(2)] = m.group(3)
    return tuple(
        Argument(int(e["offset"]), int(e["size"]), e.get("value_kind", "by_value"), e.get("name", "")) for e in entries
    )
