"""The parameters of the classifier: file format, validation, quantisation."""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from slipstream_core.errors import CommandError
from slipstream_core.file_reading import FileThread, read_regular
from slipstream_core.types import TaskType

from slipstream_gateway.decide.classify.hashing import TABLE_ROWS
from slipstream_gateway.decide.classify.prompt import COUNTS

TASKS = tuple(task for task in TaskType if task is not TaskType.UNKNOWN)
HEADS = ("long", "rare", "speculate")
COLUMNS = len(TASKS) + len(HEADS)
# The logit of each head is that of its words, plus these multiples of the logit of its share by task, and of the log of
# the expected length, in medium lengths.
TASK_WEIGHTS = (0.0, 0.5, 0.5)
LENGTH_WEIGHTS = (1.0, 0.0, 1.0)
SHARES = (0.005, 0.995)  # bounds of a share by task, whose logit must be finite
LENGTH_BY_WORDS = 0.2  # of the words' logit of a long answer, in the log of the expected length
STATED_SLOPE = 2.5  # of the logit of a long answer, over the log of a stated length
MAX_TOKENS = 8000.0  # of an expected length
_FORMAT = 4
_SHIPPED = Path(__file__).with_name("model.npz")
_STEPS = 127
_MAX_BYTES = 256 * 1024 * 1024

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Model:
    """All arrays are float32; C tasks, H heads.

    `table` (TABLE_ROWS, C + H) holds a weight per feature for each task and each of `HEADS`; `bias` (C + H,) completes
    the margins of the tasks and the logits of the heads. The margins over `temperature` are the logits of the tasks.
    `counts` (COUNTS, H) are the weights of a prompt's counts. `by_task` (C, H) is how often a task's answers are rare,
    worth speculating. `lengths` (2, C) are the log of a task's usual answer tokens for a prompt of `size` 0,
    and how much that grows with the size. `shares` are the mean shares of rare tokens in answers
    that are not rare and in answers that are.
    """

    table: Floats
    bias: Floats
    temperature: float
    counts: Floats
    by_task: Floats
    lengths: Floats
    shares: Floats


def default_model() -> Model:
    """The model that is part of the package."""
    return load_model(_SHIPPED)


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of every array of a model."""
    tasks, heads = len(TASKS), len(HEADS)
    return {
        "table": (TABLE_ROWS, COLUMNS),
        "bias": (COLUMNS,),
        "counts": (COUNTS, heads),
        "by_task": (tasks, heads),
        "lengths": (2, tasks),
        "shares": (2,),
    }


def save_model(model: Model, path: Path) -> None:
    """Writes `model`; the table in 8 bits, with one scale per column. Raises OSError."""
    arrays: dict[str, Any] = {name: getattr(model, name) for name in shapes()}
    arrays["table"], arrays["scale"] = _quantised(arrays["table"])
    with path.open("wb") as file:
        np.savez_compressed(file, format=_FORMAT, tasks=np.array(TASKS, "U"), temperature=model.temperature, **arrays)


def load_model(path: Path) -> Model:
    """The model in `path`. Raises CommandError if it cannot be read in time or is not a model of this release."""
    try:
        data = FileThread().run(lambda: read_regular(path, max_bytes=_MAX_BYTES))
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        problem = _problem(arrays)
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror or error}", exit_code=2) from error
    except (ValueError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CommandError(f"{path}: not a classifier written by 'slipstream train'", exit_code=2) from error
    if problem:
        raise CommandError(f"{path}: {problem}", exit_code=2)
    values = {name: arrays[name].astype(np.float32) for name in shapes()}
    values["table"] *= arrays["scale"].astype(np.float32)
    return Model(**values, temperature=float(arrays["temperature"]))


def _problem(arrays: dict[str, npt.NDArray[Any]]) -> str:
    """The reason why `arrays` is not a model; empty if it is."""
    wanted = {*shapes(), "format", "tasks", "temperature", "scale"}
    if "format" in arrays and arrays["format"] != _FORMAT:
        return "written by another release of slipstream; train it again"
    if wanted - arrays.keys():
        return f"not a classifier written by 'slipstream train': it lacks {', '.join(sorted(wanted - arrays.keys()))}"
    if arrays["tasks"].tolist() != list(TASKS):
        return "written by another release of slipstream; train it again"
    for name, shape in {**shapes(), "scale": (COLUMNS,)}.items():
        if arrays[name].shape != shape:
            return f"{name} has the shape {arrays[name].shape}, not {shape}"
        if not np.isfinite(arrays[name]).all():
            return f"{name} holds numbers that are not finite"
    return "" if arrays["temperature"] > 0 else f"temperature is {arrays['temperature']}, which is not positive"


def _quantised(values: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """`values` in 255 steps per column, and the size of a step."""
    scale = np.maximum(np.abs(values).max(axis=0), 1e-6) / _STEPS
    return np.rint(values / scale).astype(np.int8), np.asarray(scale, np.float32)
