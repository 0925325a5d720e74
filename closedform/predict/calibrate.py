"""`fit`: a user's CSV of measured products to constants of the latency model, with cross-validation by shape."""

from __future__ import annotations

import csv
import datetime
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, InfeasibleError
from closedform.writing import write_together

from .bands import coverage_of_held_out, fitted_bands
from .constants import COLUMNS, Constants, constants_for
from .families import gemm_family
from .fit import cross_validated, fit_constants, mean_factor
from .gemm import gemm_timing, k_step
from .gemm_time import GemmShapes
from .lattice import check_gemm_config, family_configs, legal_configs, useful
from .select import LIMIT

if TYPE_CHECKING:
    from .configs import Array

__all__ = ["Calibration", "Measurements", "calibrate", "read_measurements", "write_constants"]

#: Units by the factor to microseconds, for the hint where every time is far off.
OTHER_UNITS = {"nanoseconds": 1e3, "milliseconds": 1e-3, "seconds": 1e-6}
#: A median error beyond this is a unit, not a GPU: two GPUs of the catalogue differ by less.
FAR = 30.0
REQUIRED = ("M", "N", "K", "dtype", "layout", "us")
TILE = ("tile_m", "tile_n", "tile_k")
OPTIONAL = {"tile_m": 0, "tile_n": 0, "tile_k": 0, "waves": 4, "stages": 2, "split_k": 1}
LEAST_ROWS = 8
LAYOUTS = ("NN", "NT", "TN", "TT")
PRIOR_WEIGHT = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """Columns of the CSV; tile columns are 0 where the configuration is not known."""

    numbers: dict[str, Array]
    dtype: tuple[str, ...]
    layout: tuple[str, ...]

    @property
    def us(self) -> Array:
        return self.numbers["us"]

    def take(self, mask: Array) -> Measurements:
        """The rows under that mask."""
        from itertools import compress

        numbers = {name: values[mask] for name, values in self.numbers.items()}
        return Measurements(numbers, tuple(compress(self.dtype, mask)), tuple(compress(self.layout, mask)))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted constants and their errors: exp(mean |ln(predicted / measured)|) before, after and cross-validated.

    `rows_left_out` held a configuration that does not fit the GPU; `coverage`: share of the rows inside the error bands
    of the other shapes' rows.
    """

    hw: str
    rows: int
    rows_left_out: int
    shapes: int
    before: float
    after: float
    cross_validated: float
    coverage: float
    constants: Constants

    def to_json(self) -> dict[str, Any]:
        return {
            "hw": self.hw,
            "rows": self.rows,
            "rows_left_out": self.rows_left_out,
            "shapes": self.shapes,
            "factor_before": round(self.before, 4),
            "factor_after": round(self.after, 4),
            "factor_cross_validated": round(self.cross_validated, 4),
            "band_coverage": round(self.coverage, 4),
            "constants": {name: float(f"{value:.6g}") for name, value in self.constants.items()},
        }

    def __str__(self) -> str:
        left_out = f"; {self.rows_left_out} left out, whose tiles the GPU does not hold" if self.rows_left_out else ""
        return (
            f"{self.hw}: {self.rows} rows, {self.shapes} shapes{left_out}\n"
            f"error factor before {self.before:.3f}, after {self.after:.3f}, "
            f"cross-validated by shape {self.cross_validated:.3f}\n"
            f"the error bands hold {self.coverage:.0%} of the rows of shapes that they have not seen"
        )


def read_measurements(path: str | Path) -> Measurements:
    """The columns of a measurement file; BadInput names the line and the column of what cannot be read."""
    import numpy as np

    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{Path(path).name}: not a text in UTF-8, at byte {error.start}") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
    if missing:
        raise BadInput(f"{Path(path).name}: no column {', '.join(missing)}")
    columns: dict[str, list[float]] = {name: [] for name in ("M", "N", "K", "us", *OPTIONAL)}
    dtypes, layouts = [], []
    for row in reader:
        at = f"{Path(path).name}, line {reader.line_num}"
        for name, column in columns.items():
            column.append(_number(at, name, (row.get(name) or str(OPTIONAL.get(name, ""))).strip()))
        tile = [columns[name][-1] > 0 for name in TILE]
        if any(tile) and not all(tile):
            raise BadInput(f"{at}: a tile has {', '.join(TILE)}, all of them or none")
        layout = (row["layout"] or "").strip()
        if layout not in LAYOUTS:
            raise BadInput(f"{at}: layout must be one of {', '.join(LAYOUTS)}")
        dtypes.append((row["dtype"] or "").strip())
        layouts.append(layout)
    if len(dtypes) < LEAST_ROWS:
        raise BadInput(f"{Path(path).name}: {len(dtypes)} rows, a fit needs at least {LEAST_ROWS}")
    return Measurements({name: np.array(c) for name, c in columns.items()}, tuple(dtypes), tuple(layouts))


def _number(at: str, name: str, text: str) -> float:
    """A time above 0 or a whole number from 1 on; 0 for a tile that is not known."""
    try:
        value = float(text)
    except ValueError:
        raise BadInput(f"{at}: {name}={text!r} is not a number") from None
    least = 0 if name in TILE else 1
    fits = 0 < value < float("inf") if name == "us" else least <= value <= LIMIT and value == int(value)
    if not fits:
        raise BadInput(f"{at}: {name}={text!r} is out of range")
    return value


def _held(hw: HardwareDescriptor, family: str, data: Measurements) -> Measurements:
    """The rows whose configuration the GPU holds: what spills says nothing about it.

    Raises BadInput, with the row, for a configuration that no kernel has, and where too few rows are left.
    """
    import numpy as np

    kept = np.ones(len(data.us), bool)
    first = ""
    for i, (dtype, tile_m) in enumerate(zip(data.dtype, data.numbers["tile_m"], strict=True)):
        if tile_m:
            config = {name: int(data.numbers[name][i]) for name in OPTIONAL}
            try:
                check_gemm_config(hw, family, dtype, config, int(data.numbers["K"][i]))
            except BadInput as error:
                raise BadInput(f"row {i + 1}: {error}") from None
            except InfeasibleError as error:
                kept[i] = False
                first = first or f"row {i + 1}: {error}"
    if kept.sum() < LEAST_ROWS:
        raise BadInput(f"{hw.name} holds the tiles of {kept.sum()} rows, a fit needs at least {LEAST_ROWS}; {first}")
    return data.take(kept)


def _check_unit(predicted_us: Array, measured_us: Array) -> None:
    """Raises BadInput where all times are so far off that they are in another unit."""
    import numpy as np

    factor = float(np.exp(np.median(np.log(measured_us / predicted_us))))
    if not 1 / FAR < factor < FAR:
        unit = min(OTHER_UNITS, key=lambda name: abs(np.log(factor / OTHER_UNITS[name])))
        raise BadInput(
            f"the times are {factor:.3g} of what the model expects of this GPU: column us holds microseconds, "
            f"these look like {unit}"
        )


def _predict(hw: HardwareDescriptor, data: Measurements, k: Constants, rows: Array) -> Array:
    import numpy as np

    kinds = np.array([f"{d} {la}" for d, la in zip(data.dtype, data.layout, strict=True)])
    known = data.numbers["tile_m"] > 0
    out = np.empty(len(kinds))
    for kind in np.unique(kinds[rows]):
        dtype, layout = str(kind).split()
        bits = hw.resolve_dtype(dtype).bits
        for tiles in (True, False):
            mask = rows & (kinds == kind) & (known == tiles)
            if not mask.any():
                continue
            c = {name: values[mask] for name, values in data.numbers.items()}
            out_bytes = max(bits / 8, 2.0)
            if tiles:
                found = family_configs(k.family, **{name: c[name] for name in OPTIONAL})
                s = GemmShapes(c["M"], c["N"], c["K"], bits / 8, out_bytes, layout)
                out[mask] = gemm_timing(hw, found, s, dtype, constants=k).latency_us
                continue
            lattice = legal_configs(hw, k.family, bits)
            s = GemmShapes(c["M"][:, None], c["N"][:, None], c["K"][:, None], bits / 8, out_bytes, layout)
            times = gemm_timing(
                hw, lattice, s, dtype, constants=k, step=k_step(hw, k, lattice, dtype, layout)
            ).latency_us
            out[mask] = np.where(useful(lattice, s.M, s.N, s.K), times, np.inf).min(1)
    return out


def calibrate(hw: HardwareDescriptor, data: Measurements, folds: int = 5) -> Calibration:
    """Fit the GEMM constants of `hw`, starting from those it has or borrows."""
    import numpy as np

    start = constants_for(hw, gemm_family(hw))
    given = len(data.us)
    data = _held(hw, start.family, data)
    shape = np.unique(np.stack([data.numbers[n] for n in ("M", "N", "K")]), axis=1, return_inverse=True)[1].ravel()

    def fit(rows: Array, begin: Constants = start, passes: int = 12) -> Constants:
        return fit_constants(
            lambda k: _predict(hw, data, k, rows)[rows], data.us[rows], begin, prior_weight=PRIOR_WEIGHT, passes=passes
        )

    every = np.ones(len(data.us), bool)
    if shape.max() == 0:
        raise BadInput("every row has the same shape: a fit by shape needs at least 2")
    before = _predict(hw, data, start, every)
    _check_unit(before, data.us)
    fitted = fit(every)
    cross = cross_validated(
        shape,
        lambda rows: fit(rows, passes=6),
        lambda k, rows: _predict(hw, data, k, rows)[rows],
        min(folds, shape.max() + 1),
    )
    return Calibration(
        hw.name,
        len(data.us),
        given - len(data.us),
        int(shape.max()) + 1,
        mean_factor(before, data.us),
        mean_factor(_predict(hw, data, fitted, every), data.us),
        mean_factor(cross, data.us),
        coverage_of_held_out(cross, data.us, shape, folds),
        fitted.with_values(fitted_bands(cross, data.us)),
    )


def write_constants(path: str | Path, result: Calibration, source: str) -> None:
    """The constants in the format of `constants.csv`, dated today."""
    if not source.strip():
        raise BadInput("constants need a source")
    today = datetime.date.today().isoformat()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in result.constants.rows:
        value = f"{result.constants[row.name]:.6g}"
        writer.writerow(
            (result.constants.family, result.hw, row.name, value, row.prior, row.spread, row.unit, source, today)
        )
    out = Path(path)
    try:
        write_together(out.parent, {out.name: text.getvalue().encode()})
    except OSError as error:
        raise BadInput(f"cannot write {out}: {error.strerror}") from None
