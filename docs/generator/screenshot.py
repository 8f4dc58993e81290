"""Draws a terminal with the output of ``make demo`` as an SVG picture, by Rich."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "cluster.svg"
COLUMNS = 100
CUT = "[...]"
_TITLE = (
    "What make demo prints: each GPU as a bar with the pods on it, and how many GPUs packing saves"
)
# fonts that most readers have installed, so that the picture loads no fonts
_FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
# Rich's template without its web fonts.
_FORM = (
    """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>"""
    + _TITLE
    + """</title>
<style>
.{unique_id}-matrix {{ font-family: """
    + _FONT
    + """; font-size: {char_height}px; line-height: {line_height}px; white-space: pre; }}
.{unique_id}-title {{ font-family: """
    + _FONT
    + """; font-size: 18px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
)


def demo_words() -> list[str]:
    """Return the arguments of the command of ``make demo``, without the program."""
    make = subprocess.run(
        ["make", "-n", "demo"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    line = next(each for each in make.splitlines() if "gputile simulate" in each)
    return line.partition("gputile ")[2].partition(" ||")[0].split()


def demo() -> str:
    """Return the output of the command of ``make demo`` on a terminal with colours.

    Raises:
        subprocess.CalledProcessError: the command failed. Exit code 3, for a pod that was not
            placed, is no failure.
    """
    run = (sys.executable, "-c", "from gputile.cli.main import main; main()", *demo_words())
    given = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LC_ALL")
    }
    given |= {
        "COLUMNS": str(COLUMNS),
        "FORCE_COLOR": "1",
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "LC_CTYPE": "C.UTF-8",
    }
    done = subprocess.run(run, cwd=ROOT, env=given, check=False, capture_output=True, text=True)
    if done.returncode != 3:
        done.check_returncode()
    return done.stdout


def shown(text: str) -> str:
    """Return the part of ``text`` that is in the picture: the cluster, and the comparison of
    policies.
    """
    paragraphs = text.rstrip("\n").split("\n\n")
    comparison = next(each for each in paragraphs if each.startswith("PLACEMENT"))
    return "\n\n".join([*paragraphs[:3], CUT, comparison])


def screenshot() -> str:
    """Draw the terminal."""
    console = Console(
        width=COLUMNS, file=io.StringIO(), record=True, force_terminal=True, color_system="standard"
    )
    console.print(Text.from_ansi(shown(demo())), soft_wrap=True)
    svg = console.export_svg(title="make demo", code_format=_FORM, unique_id="t")
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
