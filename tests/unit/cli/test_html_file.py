"""The page as one file: whole, and without anything that data could break out of."""

import base64
import hashlib
import json
import re

import pytest

from gputile.cli.simulation_report import html_file
from gputile.tools.web.app import assets
from gputile.tools.web.records import FeedStatus, NodeTile, PageAnswer

pytestmark = pytest.mark.requirement("B7")

DATA = re.compile(r'<script type="application/json" id="gputile-data">(.*?)</script>')


def answer(*nodes: NodeTile) -> PageAnswer:
    return PageAnswer("", 0, "simulation", 1024, FeedStatus(), list(nodes), [])


def test_data_stay_data() -> None:
    name = "</script><script>alert(1)</script><!--"
    text = html_file(answer(NodeTile(name)))
    found = DATA.search(text)
    assert found
    assert json.loads(found[1])["nodes"] == [{"name": name}]
    assert text.count("<script") == 2


def test_it_loads_nothing_and_runs_its_own_script_alone() -> None:
    text = html_file(answer())
    assert not re.search(r'(?:src|href)="', text)
    assert "/static/" not in text
    assert "/api/state" not in text.partition("<script")[0]
    script = re.search(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert script
    assert policy
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none'; ")


def test_the_browser_is_told_of_all_modules_at_once() -> None:
    """It would find them one after the other, each after an answer of the server."""
    files = assets()
    told = re.findall(r'<link rel="modulepreload" href="/static/([\w.]+)">', files["page.html"].body.decode())
    assert sorted([*told, "main.js"]) == sorted(name for name in files if name.endswith(".js"))
