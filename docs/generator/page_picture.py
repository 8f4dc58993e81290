"""The picture of the page: the demo's cluster as ``gputile simulate -o html`` writes it, in a real
browser.

``make picture`` draws it anew. Unlike the other pictures it is not compared with what would be
drawn now, since fonts and browsers of machines differ.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.generator.pages import DOCS
from docs.generator.screenshot import demo_words
from tests.localcluster.browser import browser

WIDTH, HEIGHT = 1360, 900
COLOUR_BY_WORKLOAD = (
    "(() => { const colour = document.getElementById('colour'); colour.value = 'workload'; "
    "colour.dispatchEvent(new Event('change')); })()"
)


def page() -> str:
    """Return the page of the demo.

    Raises:
        subprocess.CalledProcessError: it failed; code 3, of a pod without a place, is no failure.
    """
    words = demo_words()
    words = words[: words.index("--compare")]  # a page shows one policy
    run = (sys.executable, "-c", "from gputile.cli.main import main; main()", *words, "-o", "html")
    done = subprocess.run(run, cwd=DOCS.parent, check=False, capture_output=True, text=True)
    if done.returncode != 3:
        done.check_returncode()
    return done.stdout


async def draw(file: Path) -> bytes:
    """Return the picture of the page in a file, as PNG."""
    async with browser() as tab:
        await tab.size(WIDTH, HEIGHT)
        await tab.open(file.as_uri())
        await tab.until("document.documentElement.dataset.drawn")
        await tab.run(COLOUR_BY_WORKLOAD)
        return await tab.picture()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        page_file = Path(directory, "page.html")
        page_file.write_text(page(), encoding="utf-8")
        (DOCS / "pictures" / "page.png").write_bytes(asyncio.run(draw(page_file)))
