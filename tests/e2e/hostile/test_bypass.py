"""Ways around authentication: none of them opens anything."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.hostile.bypass import ADMIN_READS, as_user, attacks, bearer, get, opened, smuggled, targets, with_admin
from tests.e2e.hostile.corpus import GOOD, post
from tests.e2e.hostile.tokens import good_token, write_keys
from tests.e2e.hostile.wire import talk
from tests.e2e.hostile.world import hostile_world


async def statuses(port: int, *requests: bytes) -> list[tuple[int, ...]]:
    return [(await talk(port, [request])).statuses for request in requests]


async def test_nothing_but_a_good_key_opens_a_gateway_with_keys(tmp_path: Path) -> None:
    known = write_keys(tmp_path)
    async with hostile_world(tmp_path, "--keys", str(known.file)) as target:
        schemes = (b"authorization: Bearer ", b"authorization: bearer ", b"Authorization: BEARER ")  # none has a case
        for scheme, key in zip(schemes, (known.admin, good_token(known), known.admin), strict=True):
            field = scheme + key.encode()  # what is attacked below would open
            asked = post(GOOD, field), get(b"/v1/models", field), get(b"/metrics", field)
            assert await statuses(target.port, *asked) == [(200,)] * 3
        generated = target.seen.count
        assert await opened(target.port, attacks(known)) == {}
        assert target.seen.count == generated
        assert "Traceback" not in target.log
        for secret in (known.user, known.admin, known.revoked):
            assert secret[20:] not in target.log


async def test_nothing_reaches_admin_paths_on_the_public_port(tmp_path: Path) -> None:
    known = write_keys(tmp_path)
    async with hostile_world(tmp_path, "--keys", str(known.file), "--admin-port", "0") as target:
        assert (
            await statuses(target.admin_port, *(get(path, bearer(known.admin)) for path in ADMIN_READS[:2]))
            == [(200,)] * 2
        )
        assert await opened(target.port, tuple(with_admin(known))) == {}
        assert await opened(target.admin_port, [*targets(known), *smuggled(known), *as_user(known)]) == {}
        assert target.seen.count == 0
