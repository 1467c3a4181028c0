"""The demo prompts come from a process of their own, which must not hold `slipstream up` for ever."""

from __future__ import annotations

import pytest
from slipstream_core.errors import CommandError
from slipstream_tools.up.demo import read_prompts


@pytest.mark.integration
def test_prompts_that_take_too_long_are_one_clear_error() -> None:
    with pytest.raises(CommandError, match=r"demo prompts took longer than 0\.001 s"):
        read_prompts(timeout_s=0.001)
