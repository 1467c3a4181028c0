"""What was captured: by pair and day, and by class with the acceptance of the present draft."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from slipstream_gateway.capture.store import CaptureStore, StoredFile

COLUMNS = (
    "request_class", "arm", "prompt_tokens", "output_tokens", "drafted", "accepted", "steps", "rejected_at",
    "token_ids",
)  # fmt: skip
_SPECULATIVE = "speculative"
Row = dict[str, Any]


def days(store: CaptureStore, files: Iterable[StoredFile]) -> list[Row]:
    """The number of answers, their tokens and their files, by pair and day."""
    found: dict[tuple[str, str], Row] = {}
    for file in files:
        key = file.pair, file.date.isoformat()
        day = found.setdefault(key, {"pair": key[0], "date": key[1], "answers": 0, "tokens": 0, "files": 0, "bytes": 0})
        table = store.read(file, ("output_tokens",))
        day["answers"] += table.num_rows
        day["tokens"] += _sum(table, "output_tokens")
        day["files"] += 1
        day["bytes"] += file.size_bytes
    return [found[key] for key in sorted(found)]


def days_table(rows: Sequence[Row]) -> str:
    return _table(("pair", "date", "answers", "tokens", "files", "bytes"), rows)


def classes(tables: Iterable[pa.Table]) -> list[Row]:
    """One row for each class, that with the most tokens first.

    `tokens_per_step` and `acceptance` (accepted draft tokens by all that were verified) are those of its speculative
    answers, None without any. `rejected_by_position[i]` is the share of their steps whose first rejected draft token
    was at position i. `exact` counts the answers with token ids.
    """
    sums: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    rejected: defaultdict[str, list[int]] = defaultdict(list)
    for table in tables:
        for row in table.to_pylist():
            count = sums[row["request_class"]]
            count["answers"] += 1
            count["prompt_tokens"] += row["prompt_tokens"]
            count["tokens"] += row["output_tokens"]
            count["exact"] += row["token_ids"] is not None
            if row["arm"] == _SPECULATIVE and row["steps"]:
                for name in ("drafted", "accepted", "steps"):
                    count[name] += row[name]
                count["speculative_tokens"] += row["output_tokens"]
                _add(rejected[row["request_class"]], row["rejected_at"])
    found = [_class(name, count, rejected[name]) for name, count in sums.items()]
    return sorted(found, key=lambda row: (-row["tokens"], row["class"]))


def _class(name: str, count: dict[str, int], rejected: Sequence[int]) -> Row:
    steps, drafted = count["steps"], count["drafted"]
    return {
        "class": name,
        "answers": count["answers"],
        "exact": count["exact"],
        "prompt_tokens": count["prompt_tokens"],
        "tokens": count["tokens"],
        "acceptance": round(count["accepted"] / drafted, 3) if drafted else None,
        "tokens_per_step": round(count["speculative_tokens"] / steps, 2) if steps else None,
        "rejected_by_position": [round(times / steps, 3) for times in rejected] if steps else [],
    }


def classes_table(rows: Sequence[Row]) -> str:
    shown = [
        row | {"rejected at 1, 2, …": " ".join(f"{share:.0%}" for share in row["rejected_by_position"])} for row in rows
    ]
    columns = ("class", "answers", "exact", "tokens", "acceptance", "tokens_per_step", "rejected at 1, 2, …")
    return _table(columns, shown)


def _add(total: list[int], counts: Sequence[int]) -> None:
    total.extend([0] * (len(counts) - len(total)))
    for position, count in enumerate(counts):
        total[position] += count


def _sum(table: pa.Table, column: str) -> int:
    return sum(value or 0 for value in table.column(column).to_pylist())


def _table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Columns side by side: texts to the left, numbers to the right."""
    cells = [[name.replace("_", " ") for name in columns]]
    cells += [["-" if row[name] is None else str(row[name]) for name in columns] for row in rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    is_text = [all(isinstance(row[name], str) for row in rows) for name in columns]
    return "\n".join("  ".join(map(_aligned, line, widths, is_text)).rstrip() for line in cells)


def _aligned(cell: str, width: int, is_text: bool) -> str:
    return cell.ljust(width) if is_text else cell.rjust(width)
