"""`slipstream drafts train`: trains a draft on captured answers, in a process of the engine's own package."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress

from slipstream_core.errors import CommandError
from slipstream_core.installation import how_to_install
from slipstream_gateway.capture.store import CaptureStore

from slipstream_tools.drafts import export, recipes
from slipstream_tools.drafts.new_file import new_file
from slipstream_tools.drafts.options import LLAMA
from slipstream_tools.drafts.selection import Selection, nothing_found

_MODULE, _CHECK = "slipstream_training", "slipstream_engine.checks.draft_check"
_NEEDED = ("torch", "safetensors", "tokenizers")
_STOPPED = (130, -signal.SIGTERM, -signal.SIGINT)  # by a signal, also before the process handles signals
_LOW = 10  # a nice value: about a tenth of a busy processor


def check_options(args: argparse.Namespace) -> None:
    """Raises `CommandError` if options exclude each other, or a package is missing."""
    if args.method == LLAMA:
        check_start(args)
    elif args.new is not None:
        raise CommandError(f"--new is not for --method {args.method}, which has a size of its own.", exit_code=2)


def check_start(args: argparse.Namespace) -> None:
    """Raises `CommandError` if nothing is given to start from, or a package is missing."""
    if args.draft is None and args.new is None:
        raise CommandError("give --draft FOLDER to start from, or --new LAYERSxHIDDEN, such as 1x192.", exit_code=2)
    check_installed()


def check_installed() -> None:
    """Raises `CommandError` if a package is missing."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise CommandError(
            f"training needs the package {missing[0]!r}; {how_to_install('engine,cpu')} "
            "(on a GPU engine,gpu in place of engine,cpu)"
        )


def check_one_target(store: CaptureStore, selection: Selection, args: argparse.Namespace) -> None:
    """Raises `CommandError` unless the selected answers are of one target: token ids of others mean other texts."""
    targets = {
        (row["pair"], row["target"])
        for table in selection.tables(store, ("request_class", "time", "pair", "target"))
        for row in table.select(["pair", "target"]).group_by(["pair", "target"]).aggregate([]).to_pylist()
    }
    if not targets:
        raise nothing_found(args)
    if len({target for _, target in targets}) > 1:
        found = ", ".join(sorted(f"{pair} with {target}" for pair, target in targets))
        raise CommandError(f"the answers are of several targets ({found}): choose with --pair and --since.")


def train(store: CaptureStore, selection: Selection, args: argparse.Namespace) -> None:
    """Train a draft by `args.method`, or write what trains it."""
    if args.method == LLAMA:
        train_llama(store, selection, args)
        print(f"To serve it, set the pair's spec.draft.source to {args.output}, with kind model.", file=sys.stderr)
    else:
        _write_recipe(store, selection, args)


def check_draft(target: str, draft: str, *, as_json: bool) -> int:
    """Check a draft against its target. Returns the exit status."""
    check_installed()
    command = [sys.executable, "-m", _CHECK, "--target", target, "--draft", draft, *(["--json"] if as_json else [])]
    return subprocess.run(command, check=False).returncode


def _write_recipe(store: CaptureStore, selection: Selection, args: argparse.Namespace) -> None:
    answers, file = args.output / "answers.jsonl", args.output / "train.sh"
    text = recipes.script(
        args.method, target=args.target, draft=args.draft, passes=str(args.passes), answers=answers, output=args.output
    )
    args.output.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_file(file) as script:
        script.write(text)
    with new_file(answers) as rows:
        counts = export.write(selection.tables(store), "speculators", rows)
    print(export.summary(counts), file=sys.stderr)
    if not counts.written:
        raise CommandError(f"{answers} is empty: no answer has the tokens of prompt and answer.")
    print(
        f"{file} has the commands. When the draft is trained, delete {answers}, and the folders data and hidden_states "
        "beside it, which the commands make of it: 'slipstream drafts forget' does not reach them.",
        file=sys.stderr,
    )


def train_llama(
    store: CaptureStore, selection: Selection, args: argparse.Namespace, *, beside_serving: bool = False
) -> None:
    """Pass the answers to the training process, which shows its progress. They are written nowhere else.

    With `beside_serving` the process has a low priority, and takes half of the processors. With all of them, its
    threads would wait for those that share a processor with a server.

    Raises:
        CommandError: no draft was trained.
        KeyboardInterrupt: the training was interrupted. The same call resumes it.
    """
    process = _started(selection, args, beside_serving=beside_serving)
    signals = _Signals(process)
    before = signal.signal(signal.SIGTERM, signals.handle)
    try:
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as pipe:  # the process says why it reads no further
            print(export.summary(export.write(selection.tables(store), "speculators", pipe)), file=sys.stderr)
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C has reached it, too, and it keeps its state
        raise
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if signals.received or status in _STOPPED:
        raise KeyboardInterrupt
    if status:
        raise CommandError("no draft was trained.", exit_code=status)


def _started(selection: Selection, args: argparse.Namespace, *, beside_serving: bool) -> subprocess.Popen[str]:
    start = ("--draft", args.draft) if args.draft is not None else ("--new", args.new)
    command = [
        *(sys.executable, "-m", _MODULE, "--answers", "-", "--target", args.target, *start),
        *("--output", str(args.output), "--passes", str(args.passes), "--device", args.device),
        *("--only", selection.request_class or ""),
    ]
    threads = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2))} if beside_serving else {}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, encoding="utf-8", env={**threads, **os.environ})
    if beside_serving:
        os.setpriority(os.PRIO_PROCESS, process.pid, _LOW)
    return process


class _Signals:
    """Passes SIGTERM on to `process`, which then keeps its state, as after Ctrl-C."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.received = False

    def handle(self, _signal: int, _frame: object) -> None:
        self.received = True
        self._process.terminate()
