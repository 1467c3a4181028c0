"""`slipstream keys`: creates, lists, shows, revokes and rotates API keys, in a file or in a Secret of a cluster.

A key is printed once, on stdout, when it is created; it cannot be recovered from the stored hash. All other output goes
to stderr, so that `KEY=$(slipstream keys create …)` contains the key alone. Exit codes: 0 success, 1 failure, 2 usage
error.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipstream_core.arguments import at_least_one, number
from slipstream_core.errors import CommandError
from slipstream_core.installation import how_to_install
from slipstream_core.rate_limits import Limits
from slipstream_core.restricted_parameters import Restricted
from slipstream_core.types import Mode, Priority
from slipstream_gateway.access.key_text import new_key
from slipstream_gateway.access.keyring import pepper_path, read_pepper
from slipstream_gateway.access.records import AccessFile, KeyRecord, Price, Scopes

from slipstream_tools.keys import changes
from slipstream_tools.keys.places import FilePlace, Place, SecretName, as_yaml, manifest
from slipstream_tools.keys.table import as_json, table

_NO_HASH = "0" * 64
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SECRET = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)/([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = commands.add_parser("create", help="create a key and print it once")
    _add_place(create)
    _add_rights(create)
    listing = commands.add_parser("list", help="list the keys without their hashes")
    _add_place(listing)
    listing.add_argument("--json", action="store_true", help="as JSON")
    for name, text in (("show", "print one key as JSON"), ("revoke", "revoke a key at once")):
        one = commands.add_parser(name, help=text)
        _add_place(one)
        one.add_argument("key", metavar="ID|NAME")
    rotate = commands.add_parser("rotate", help="replace a key's secret and print the new key once")
    _add_place(rotate)
    rotate.add_argument("key", metavar="ID|NAME")
    rotate.add_argument(
        "--grace",
        type=_duration,
        default=timedelta(hours=24),
        metavar="TIME",
        help="how long the old secret stays valid (24h)",
    )
    price = commands.add_parser("price", help="set token prices, for budgets")
    _add_place(price)
    price.add_argument("--models", default="*", metavar="GLOB", help="models that the price applies to (%(default)s)")
    for side in ("input", "output"):
        price.add_argument(
            f"--{side}", type=_usd, required=True, metavar="USD", help=f"price of a million {side} tokens"
        )
    export = commands.add_parser("export", help="print a key file as the manifest of a Secret")
    export.add_argument("-f", "--file", type=Path, required=True, metavar="FILE")
    export.add_argument("--pepper", type=Path, metavar="FILE", help="(FILE.pepper)")
    export.add_argument("--as", dest="secret", type=_secret, required=True, metavar="NS/NAME")


def run(args: argparse.Namespace) -> int:
    actions: dict[str, Callable[[argparse.Namespace], None]] = {
        "create": _create,
        "list": _list,
        "show": _show,
        "revoke": _revoke,
        "rotate": _rotate,
        "price": _price,
        "export": _export,
    }
    actions[args.action](args)
    return 0


def _create(args: argparse.Namespace) -> None:
    key, place, now = new_key(), _place(args), _now()
    record = KeyRecord(
        id=key.id,
        name=args.name or "",
        hash=_NO_HASH,
        created=now,
        expires=now + args.expires if args.expires is not None else None,
        scopes=_scopes(args),
        priority=Priority(args.priority),
        limits=Limits(
            requests_per_minute=args.requests_per_minute,
            tokens_per_minute=args.tokens_per_minute,
            concurrent=args.concurrent,
            usd_per_day=args.usd_per_day,
        ),
    )
    place.change(lambda file, pepper: _checked(changes.create(file, pepper, key, record)), create=True)
    print(f"key {key.id} is stored in {place}; it is printed only once:", file=sys.stderr)
    print(key.text)


def _list(args: argparse.Namespace) -> None:
    file, now = _place(args).read(), _now()
    print(json.dumps([as_json(record, now) for record in file.keys], indent=2) if args.json else table(file, now))


def _show(args: argparse.Namespace) -> None:
    file = _place(args).read()
    found = [record for record in file.keys if args.key in (record.id, record.name)]
    if not found:
        raise CommandError(f"there is no key '{args.key}'.")
    for record in found:
        print(json.dumps(as_json(record, _now()), indent=2))


def _revoke(args: argparse.Namespace) -> None:
    place = _place(args)
    place.change(lambda file, _: changes.revoke(file, args.key, _now()))
    print(f"key {args.key} is revoked in {place}", file=sys.stderr)


def _rotate(args: argparse.Namespace) -> None:
    place, now, texts = _place(args), _now(), []

    def rotated(file: AccessFile, pepper: bytes) -> AccessFile:
        changed, key = changes.rotate(file, pepper, args.key, now=now, until=now + args.grace)
        texts.append(key.text)
        return changed

    place.change(rotated)
    print(f"key {args.key} has a new secret in {place}; it is printed only once:", file=sys.stderr)
    print(texts[-1])  # earlier ones are from attempts that conflicted with another writer


def _price(args: argparse.Namespace) -> None:
    place = _place(args)
    price = Price(
        models=args.models, input_usd_per_million_tokens=args.input, output_usd_per_million_tokens=args.output
    )
    place.change(lambda file, _: changes.with_price(file, price), create=True)
    print(f"the price for models '{args.models}' is stored in {place}", file=sys.stderr)


def _export(args: argparse.Namespace) -> None:
    file = FilePlace(args.file, args.pepper).read()
    pepper = read_pepper(pepper_path(args.file, args.pepper))
    print(as_yaml(manifest(args.secret, file, pepper)), end="")


def _checked(file: AccessFile) -> AccessFile:
    """`file`, after a check that every budget has a price. Raises `CommandError` with the remedy."""
    has_budget = any(record.limits.usd_per_day is not None for record in file.keys)
    if has_budget and not any(price.models == "*" for price in file.prices):
        raise CommandError(
            "--usd-per-day requires prices: run 'slipstream keys price --input USD --output USD …' first."
        )
    return file


def _add_place(parser: argparse.ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("-f", "--file", type=Path, metavar="FILE", help="key file")
    place.add_argument("--secret", type=_secret, metavar="NS/NAME", help="Secret of a cluster that holds the keys")
    parser.add_argument(
        "--pepper", type=Path, metavar="FILE", help="file with the pepper of the key hashes (FILE.pepper)"
    )
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="kubeconfig of the cluster, as for kubectl")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")


def _add_rights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="name of the key's owner, for lists")
    parser.add_argument(
        "--expires", type=_duration, metavar="TIME", help="validity period, such as 12h or 90d (unlimited)"
    )
    parser.add_argument(
        "--model", action="append", metavar="GLOB", help="model that the key may use; may be repeated (all)"
    )
    parser.add_argument("--no-models", action="store_true", help="permit no models: a key for admin paths only")
    parser.add_argument(
        "--mode",
        action="append",
        choices=[str(Mode.SPECULATIVE), str(Mode.PLAIN)],
        help="value of x-slipstream-mode that the key may send; may be repeated (both)",
    )
    parser.add_argument("--no-mode", action="store_true", help="forbid x-slipstream-mode other than auto")
    parser.add_argument("--no-draft-length", action="store_true", help="forbid x-slipstream-draft-length")
    parser.add_argument("--no-learn-off", action="store_true", help="forbid x-slipstream-learn: off")
    parser.add_argument(
        "--parameter",
        action="append",
        choices=[str(one) for one in Restricted],
        metavar="NAME",
        help="restricted parameter that the key may send, as listed in docs/access.md; may be repeated (none)",
    )
    parser.add_argument(
        "--state",
        action="append",
        metavar="ID",
        help="id or glob of stored state that is the key's besides its own responses; may be repeated (none)",
    )
    parser.add_argument("--admin", action="store_true", help="permit the admin paths")
    parser.add_argument("--priority", choices=[str(one) for one in Priority], default=str(Priority.NORMAL))
    parser.add_argument("--requests-per-minute", type=at_least_one, metavar="N")
    parser.add_argument(
        "--tokens-per-minute", type=at_least_one, metavar="N", help="tokens of prompts and answers together"
    )
    parser.add_argument("--concurrent", type=at_least_one, metavar="N", help="concurrent requests; each choice counts")
    parser.add_argument(
        "--usd-per-day", type=_usd, metavar="USD", help="budget by the prices in the key file; days are in UTC"
    )


def _scopes(args: argparse.Namespace) -> Scopes:
    for one, other in (("model", "no_models"), ("mode", "no_mode")):
        if getattr(args, one) and getattr(args, other):
            raise CommandError(f"--{one} and --{other.replace('_', '-')} exclude each other.", exit_code=2)
    every = Scopes()
    return Scopes(
        models=() if args.no_models else tuple(args.model or every.models),
        modes=() if args.no_mode else tuple(map(Mode, args.mode)) if args.mode else every.modes,
        draft_length=not args.no_draft_length,
        learn=not args.no_learn_off,
        parameters=tuple(map(Restricted, args.parameter or ())),
        state=tuple(args.state or ()),
        admin=args.admin,
    )


def _place(args: argparse.Namespace) -> Place:
    if args.secret is None:
        return FilePlace(args.file, args.pepper)
    if args.pepper is not None:
        raise CommandError("--pepper is for key files; a Secret contains its own pepper.", exit_code=2)
    if importlib.util.find_spec("kubernetes") is None:
        raise CommandError(f"--secret requires the package 'kubernetes'; {how_to_install('kubernetes')}")
    from slipstream_tools.keys.secret_place import SecretPlace

    return SecretPlace(args.secret, kubeconfig=args.kubeconfig, context=args.context)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a duration such as 30m, 12h or 90d, got {text!r}")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _usd(text: str) -> float:
    return number(text, "USD from 0 to 1000000", lambda value: 0 <= value <= 1e6)


def _secret(text: str) -> SecretName:
    match = _SECRET.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected NAMESPACE/NAME, got {text!r}")
    return SecretName(match[1], match[3])
