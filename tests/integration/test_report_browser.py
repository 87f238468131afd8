"""A page in a real browser, where there is one: no script runs, and it fits every screen.

`VTRIM_BROWSER` names another one, such as `chrome`; `chromium-headless-shell` of a Linux
distribution will do. Without any, these tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from report_samples import hostile, make_folder, make_search
from vtrim_hf import build_report

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = os.environ.get("VTRIM_BROWSER") or next(filter(shutil.which, NAMES), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
]


def browse(page: Path, place: Path, *options: str) -> tuple[str, str]:
    """Open a page in a profile of its own; return what the page became, and what was logged."""
    done = subprocess.run(
        [
            str(BROWSER),
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *(f"--user-data-dir={place / 'profile'}", "--enable-logging=stderr", "--v=0"),
            *options,
            *("--virtual-time-budget=2000", "--dump-dom", page.resolve().as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout, done.stderr


def console(log: str) -> list[str]:
    """What the page itself gave reason to log."""
    return [line for line in log.splitlines() if "CONSOLE" in line]


def test_a_hostile_page_runs_nothing(tmp_path: Path) -> None:
    page = build_report(hostile(tmp_path / "run", make_search()))
    dom, log = browse(page, tmp_path)
    assert re.search(r"<title>a &lt;b&gt; &amp; 'c': vtrim report</title>", dom)
    assert "<script" not in dom.lower()
    assert console(log) == []


def test_the_browser_keeps_the_page_as_it_is(tmp_path: Path) -> None:
    page = build_report(make_folder(tmp_path / "run", make_search()))
    dom, log = browse(page, tmp_path)
    assert console(log) == []
    written = page.read_text("utf-8")
    # A browser that must mend a page moves or adds elements.
    for tag in ("table", "tr", "th", "td", "section", "figure", "svg", "path", "use", "details"):
        assert dom.count(f"<{tag}") == written.count(f"<{tag}"), tag


def probe(page: Path, place: Path, width: int) -> tuple[int, int]:
    """Return how wide a page of a window is, and how wide what it holds, in pixels."""
    written = page.read_text("utf-8")
    # Only this copy may run a script: it measures.
    measure = (
        "<script>document.title = document.documentElement.scrollWidth + ' '"
        " + document.documentElement.clientWidth</script></body>"
    )
    copy = place / "probe.html"
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", written)
    copy.write_text(free.replace("</body>", measure), encoding="utf-8")
    dom, _ = browse(copy, place, f"--window-size={width},900")
    found = re.search(r"<title>(\d+) (\d+)</title>", dom)
    assert found, dom[:400]
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_sticks_out(tmp_path: Path, width: int) -> None:
    page = build_report(make_folder(tmp_path / "run", make_search()))
    held, window = probe(page, tmp_path, width)
    assert abs(window - width) < 30
    assert held <= window
