"""The page on LiteLLM shows the files of the example, and its manifest is taken."""

from __future__ import annotations

from slipstream_core.manifest import load_file

from tests.support.doc_blocks import Block, runs
from tests.support.litellm_proxy import EXAMPLE


@runs("docs/howto/litellm.md", "# LiteLLM's proxy in front", '"""The callback that')
def test_the_page_shows_the_files_of_the_example(blocks: list[Block]) -> None:
    for block, name in zip(blocks, ("config.yaml", "slipstream_callback.py"), strict=True):
        assert block.text == (EXAMPLE / name).read_text(encoding="utf-8")


def test_the_manifest_of_the_example_has_the_model_of_its_configuration() -> None:
    assert [route.model for route in load_file(EXAMPLE / "pair.yaml").routes.values()] == ["llama-3.1-8b"]
    assert "model_name: llama-3.1-8b" in (EXAMPLE / "config.yaml").read_text(encoding="utf-8")
