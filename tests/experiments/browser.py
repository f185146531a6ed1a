"""A page as headless Chromium shows it."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import pytest

LIMIT_S = 60

# Runs in a copy of the page once all of it has loaded, and leaves what it saw in the DOM.
PROBE = """
<script>
addEventListener("load", () => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    const seen = document.createElement("pre");
    seen.id = "seen";
    seen.textContent = JSON.stringify({
        headings: all("h1, h2").map((node) => node.innerText.trim()),
        widths: all("img").map((image) => image.naturalWidth),
        tables: all("table.study").length,
        requests: all("[src], link[href]").map((node) => node.src || node.href)
            .filter((name) => !name.startsWith("data:")),
        overflow: document.documentElement.scrollWidth - innerWidth,
    });
    document.body.append(seen);
});
</script>
"""


class Visit(NamedTuple):
    """`console`: every line written to it, which errors, warnings and failed requests are."""

    console: list[str]
    seen: dict[str, Any]


def visit(page: Path, folder: Path) -> Visit:
    """Open a copy of `page` in `folder`, where no name of a host can be resolved.

    Skips the test where Chromium is not installed.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    copy = folder / "probed.html"
    copy.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    command = [
        *(chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--enable-logging=stderr", "--v=0", "--no-first-run", "--disable-background-networking"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}"),
        *("--window-size=1280,1000", "--dump-dom", copy.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Visit(console, json.loads(unescape(found[1])))
