"""Reader of the fact tables: CSV files whose every row names its source."""

from __future__ import annotations

import csv
from pathlib import Path

from .errors import BadInput

__all__ = ["FACTS", "STATUSES", "read_facts"]

#: Folder of the fact tables.
FACTS = Path(__file__).parent / "facts"

#: How well a fact is known, from a text that was read to a reading of ours.
STATUSES = frozenset({"read", "observed", "measured", "computed", "secondhand", "inferred", "not stated", "printed"})


def read_facts(file: str | Path, key: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows of a fact table, in file order.

    `key` names the columns that identify a row. Raises BadInput, with the line, for a row without a source,
    with the wrong number of cells, with an unknown status or with the key of an earlier row.
    """
    path = FACTS / file
    with path.open(newline="", encoding="utf-8") as stream:
        lines = csv.reader(stream)
        header = next(lines, [])
        missing = [column for column in (*key, "source") if column not in header]
        if missing:
            raise BadInput(f"{path.name}: no column {', '.join(missing)}")
        status = header.index("status") if "status" in header else None
        source = header.index("source")
        where = [header.index(column) for column in key]
        rows: list[dict[str, str]] = []
        seen: set[tuple[str, ...]] = set()
        for cells in lines:
            at = f"{path.name}, line {lines.line_num}"
            if len(cells) != len(header):
                raise BadInput(f"{at}: {len(cells)} cells, expected {len(header)}")
            if not cells[source].strip():
                raise BadInput(f"{at}: a fact without a source")
            if status is not None and cells[status] not in STATUSES:
                raise BadInput(f"{at}: unknown status {cells[status]!r}")
            identity = tuple(cells[i] for i in where)
            if identity in seen:
                raise BadInput(f"{at}: a second row for {', '.join(identity)}")
            seen.add(identity)
            rows.append(dict(zip(header, cells, strict=True)))
        return rows
