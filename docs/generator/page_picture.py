"""Draws the picture of the web page with the demo's cluster, by a real browser.

The page is the output of ``gputile simulate -o html``. ``make picture`` draws the picture again. No
test compares this picture with the page, because fonts and browsers differ between machines.
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
    """Return the HTML page of the demo.

    Raises:
        subprocess.CalledProcessError: the command failed. Exit code 3, for a pod that was not
            placed, is no failure.
    """
    words = demo_words()
    words = words[: words.index("--compare")]  # because a page shows only one policy
    run = (sys.executable, "-c", "from gputile.cli.main import main; main()", *words, "-o", "html")
    done = subprocess.run(run, cwd=DOCS.parent, check=False, capture_output=True, text=True)
    if done.returncode != 3:
        done.check_returncode()
    return done.stdout


async def draw(file: Path) -> bytes:
    """Draw the page in a file as a PNG picture, and return the picture."""
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
