"""The page in a real browser: it loads alone, shows what was measured, and works by keyboard, in the dark, on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slipstream_tools.bench.report import write_report

from tests.gateway.bench.report.recorded_run import AGAIN, make_rows, make_summary

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "\"'><script>alert(2)</script>",
)
CONTRAST = """
(selector) => {
  const luminance = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const node = document.querySelector(selector);
  const style = getComputedStyle(node);
  const ink = luminance(node instanceof SVGElement ? style.fill : style.color);
  let ground = node;
  while (["rgba(0, 0, 0, 0)", "transparent"].includes(getComputedStyle(ground).backgroundColor)) {
    ground = ground.parentElement;
  }
  const paper = luminance(getComputedStyle(ground).backgroundColor);
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}
"""

OpenPage = Callable[..., tuple[Any, Any]]


def test_the_page_loads_without_the_network_and_without_a_word_on_the_console(
    report: Path, open_page: OpenPage
) -> None:
    page, seen = open_page(report)
    page.wait_for_load_state("networkidle")
    assert seen.requests == [report.as_uri()]
    assert seen.console == []


def test_a_mark_stands_where_its_value_is_on_the_axis(report: Path, open_page: OpenPage) -> None:
    """TTFT when plain is 50 ms for every request."""
    page, _ = open_page(report)
    figure = page.locator("#v0 figure", has=page.locator("figcaption", has_text="TTFT")).first
    mark = figure.locator('[aria-label="plain: p50 TTFT 50.0 ms (80 answers)"]')
    labels = figure.locator('[aria-label^="X-axis"] .role-axis-label text').all()
    ticks = {label.text_content(): across(label) for label in labels}
    per_ms = (ticks["40 ms"] - ticks["0"]) / 40
    assert across(mark) == pytest.approx(ticks["0"] + 50 * per_ms, abs=0.2)


def across(node: Any) -> float:
    """Where Vega put a label or a mark, in pixels from the chart's left."""
    found: float = node.evaluate("(node) => node.transform.baseVal.getItem(0).matrix.e")
    return found


def test_the_speed_up_of_a_class_is_told_with_its_interval(report: Path, open_page: OpenPage) -> None:
    """A summary takes 50 ms + 199 · 10 ms plainly, and 60 ms + 199 · 5 ms speculatively."""
    page, _ = open_page(report)
    marks = page.locator('#v0-speed-up [aria-label^="summary, spec"]').all()
    tips = [mark.get_attribute("aria-label") for mark in marks]
    assert tips == ["summary, speculative: 1.93× (1.93× to 1.93×), 40 pairs"]


def test_arrow_keys_go_through_the_marks_of_a_plot(report: Path, open_page: OpenPage) -> None:
    page, _ = open_page(report)
    page.locator("#v0 .plot").first.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#tip").text_content()
    assert page.locator("#tip").is_visible()
    assert first == page.locator("#v0 .plot .role-mark [aria-label]").first.get_attribute("aria-label")
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").text_content() != first
    page.keyboard.press("Home")
    assert page.locator("#tip").text_content() == first
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_everything_that_can_be_used_can_be_reached_by_tab(report: Path, open_page: OpenPage) -> None:
    page, _ = open_page(report)
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        name = page.evaluate(
            "(() => { const e = document.activeElement; return e.id || e.dataset.view || e.className || e.tagName })()"
        )
        if name == "BODY":
            break
        reached.add(name)
    assert {"v0", "v1", "class", "toggle", "plot", "SUMMARY", "PRE"} <= reached


def test_a_mode_can_be_hidden_everywhere(report: Path, open_page: OpenPage) -> None:
    page, _ = open_page(report)
    marks = page.locator('#v0 [aria-label*="speculative: p50 E2E"]')
    assert marks.first.is_visible()
    page.get_by_role("button", name="speculative").click()
    assert not any(mark.is_visible() for mark in marks.all())
    page.get_by_role("button", name="speculative").click()
    assert marks.first.is_visible()


def test_picking_a_class_shows_its_latencies_and_dims_other_requests(report: Path, open_page: OpenPage) -> None:
    page, _ = open_page(report)
    page.locator("#class").select_option("label")
    shown = [
        panel.locator("h3").text_content() for panel in page.locator("#v0 [data-panel]").all() if panel.is_visible()
    ]
    assert shown == ["label (40 requests)"]
    dimmed = page.evaluate(
        "[...document.querySelectorAll('#v0-break-even .role-mark [aria-label]')]"
        ".map((dot) => `${dot.classList.contains('dim')} ${dot.getAttribute('aria-label').split(':')[0]}`)"
    )
    assert set(dimmed) == {"true summary", "false label"}


def test_one_load_is_shown_at_a_time(report: Path, open_page: OpenPage) -> None:
    page, _ = open_page(report)
    assert page.locator("#v0").is_visible()
    assert page.locator("#v1").is_hidden()
    page.get_by_role("button", name="8 requests at a time").click()
    assert page.locator("#v0").is_hidden()
    assert page.locator("#v1").is_visible()


def test_without_a_script_everything_is_there(report: Path, open_page: OpenPage) -> None:
    page, _ = open_page(report, java_script_enabled=False)
    assert page.locator("#v0").is_visible()
    assert page.locator("#v1").is_visible()
    assert all(panel.is_visible() for panel in page.locator("[data-panel]").all())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(report: Path, open_page: OpenPage, scheme: str) -> None:
    page, _ = open_page(report, color_scheme=scheme)
    for selector in (
        "h1",
        ".lead",
        ".tile small",
        ".badge.yes",
        ".badge.no",
        ".role-axis-label text",
        ".role-mark text",
        "td",
    ):
        assert page.evaluate(CONTRAST, selector) >= 4.5, selector
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 19, 28)"
    assert dark is (scheme == "dark")


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_the_page_never_scrolls_sideways(report: Path, open_page: OpenPage, width: int) -> None:
    page, _ = open_page(report, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_prints(report: Path, open_page: OpenPage) -> None:
    page, _ = open_page(report)
    page.emulate_media(media="print")
    assert page.locator("#class").is_hidden()
    assert page.locator("#v0 .plot svg").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_every_plot_has_a_title_a_description_and_unique_ids(report: Path, open_page: OpenPage) -> None:
    page, _ = open_page(report)
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))
    for plot in page.locator(".plot").all():
        for attribute in ("aria-labelledby", "aria-describedby"):
            target = plot.get_attribute(attribute)
            assert page.locator(f"[id='{target}']").text_content()


def test_hostile_names_are_shown_and_do_nothing(tmp_path: Path, open_page: OpenPage) -> None:
    path, rows = tmp_path / "report.html", make_rows(classes=HOSTILE)
    write_report(make_summary(rows, source="</script><script>alert(3)</script>.jsonl"), rows, path, command=AGAIN)
    page, seen = open_page(path)
    page.wait_for_load_state("networkidle")
    assert seen.dialogs == seen.console == []
    assert seen.requests == [path.as_uri()]
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert page.get_by_role("rowheader", name=HOSTILE[0]).first.is_visible()
    page.locator(f"#v0-speed-up [aria-label^='{HOSTILE[0]}']").first.hover()
    assert page.locator("#tip").text_content().startswith(HOSTILE[0])


def test_markup_that_got_in_all_the_same_could_not_run(report: Path, open_page: OpenPage, tmp_path: Path) -> None:
    """The content security policy is the second line of defence: only the page's own script runs."""
    path = tmp_path / "broken.html"
    injected = "<script>document.title = 'taken'</script><b onclick='x()' id=bait>bait</b><main>"
    path.write_text(report.read_text().replace("<main>", injected, 1))
    page, seen = open_page(path)
    page.locator("#bait").click()
    assert page.title() != "taken"
    assert any("Content Security Policy" in line for line in seen.console)
