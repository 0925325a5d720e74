"""What the values of a hardware descriptor must satisfy: rules as data, so that all failures can be named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["problems"]

#: Whole-number fields that may be 0; all others count something that exists.
_MAY_BE_ZERO = ("mall_bytes", "vgpr_acc")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _range_problem(name: str, kind: str, value: Any) -> str:
    if value is None and "None" in kind:
        return ""
    least = 0 if name in _MAY_BE_ZERO else 1
    if kind == "int" and not (_is_int(value) and value >= least):
        return f"{name} must be a whole number of at least {least}, not {value!r}"
    if kind.startswith("float") and not (_is_number(value) and math.isfinite(value) and value > 0):
        return f"{name} must be a positive number, not {value!r}"
    if kind.startswith("tuple[int") and not all(_is_int(v) and v >= 1 for v in value):
        return f"{name} must hold whole numbers of at least 1, not {list(value)!r}"
    if name == "name" and not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", str(value)):
        return f"name must be made of a-z, 0-9, _, . and -, not {value!r}"
    if kind == "bool" and not isinstance(value, bool):
        return f"{name} must be true or false, not {value!r}"
    if name == "fp8_flavour" and value not in ("fnuz", "ocp"):
        return f"fp8_flavour must be fnuz, ocp or absent, not {value!r}"
    return ""


@dataclass(frozen=True, slots=True)
class _Rule:
    fields: tuple[str, ...]
    holds: Callable[..., bool]
    text: str


_RULES = (
    _Rule(("num_xcds", "num_cus"), lambda xcds, cus: xcds <= cus, "num_xcds exceeds num_cus"),
    _Rule(
        ("lds_max_per_workgroup_bytes", "lds_bytes"),
        lambda most, lds: most <= lds,
        "lds_max_per_workgroup_bytes exceeds lds_bytes",
    ),
    _Rule(("lds_granule_bytes", "lds_bytes"), lambda g, lds: g <= lds, "lds_granule_bytes exceeds lds_bytes"),
    _Rule(
        ("lds_granule_encoded_bytes", "lds_bytes"),
        lambda g, lds: g <= lds,
        "lds_granule_encoded_bytes exceeds lds_bytes",
    ),
    _Rule(
        ("vgpr_per_wave_max", "vgpr_arch", "vgpr_acc"),
        lambda most, arch, acc: most <= arch + acc,
        "vgpr_per_wave_max exceeds vgpr_arch + vgpr_acc",
    ),
    _Rule(
        ("vgpr_unified", "vgpr_per_wave_max", "vgpr_file"),
        lambda unified, most, file: not unified or most <= file,
        "vgpr_per_wave_max exceeds the unified vgpr_file",
    ),
    _Rule(
        ("vgpr_unified", "vgpr_arch", "vgpr_acc", "vgpr_file"),
        lambda unified, arch, acc, file: unified or max(arch, acc) <= file,
        "vgpr_arch or vgpr_acc exceeds the split vgpr_file",
    ),
    _Rule(
        ("vgpr_file", "vgpr_granule"),
        lambda file, granule: file % granule == 0,
        "vgpr_file is not a multiple of vgpr_granule",
    ),
    _Rule(
        ("workgroup_max", "wavefront_size"),
        lambda most, wave: most % wave == 0,
        "workgroup_max is not a multiple of wavefront_size",
    ),
    _Rule(
        ("mfma_acc_only", "vgpr_acc"),
        lambda only, acc: not only or acc > 0,
        "mfma_acc_only needs AccVGPRs and vgpr_acc is 0",
    ),
)


def problems(values: Mapping[str, Any], kinds: Mapping[str, str]) -> list[str]:
    """Every rule that the values break, as text.

    `kinds` are the annotations of the fields. A rule on fields that are absent or broken already is skipped.

    >>> problems({"num_cus": 4, "num_xcds": 0}, {"num_cus": "int", "num_xcds": "int"})
    ['num_xcds must be a whole number of at least 1, not 0']
    >>> problems({"num_cus": 4, "num_xcds": 8}, {"num_cus": "int", "num_xcds": "int"})
    ['num_xcds exceeds num_cus (num_xcds=8, num_cus=4)']
    """
    broken = {name: text for name, v in values.items() if (text := _range_problem(name, kinds[name], v))}
    sound = values.keys() - broken.keys()
    contradictions = [
        f"{rule.text} ({', '.join(f'{name}={values[name]}' for name in rule.fields)})"
        for rule in _RULES
        if sound.issuperset(rule.fields) and not rule.holds(*(values[name] for name in rule.fields))
    ]
    return [*broken.values(), *contradictions]
