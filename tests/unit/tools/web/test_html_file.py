"""The page as one file: whole, and without anything that data could break out of."""

import base64
import hashlib
import json
import re

import pytest
from typer.testing import CliRunner

from gputile.cli.app import app
from gputile.tools.web.assets import assets, html_file, one_script
from gputile.tools.web.records import FeedStatus, NodeTile, PageAnswer
from tests.localcluster.gputile import EXAMPLES

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


def test_names_at_the_top_of_modules_differ() -> None:
    script = one_script(assets())
    names = re.findall(r"^(?:async )?(?:const|let|class|function) (\w+)", script, re.MULTILINE)
    assert len(names) > 50
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
    assert not re.search(r"^(?:import|export) ", script, re.MULTILINE)
    assert all(name in script for name in ("class TileGrid", "class Model", "class WhatIf"))


def test_the_browser_is_told_of_all_modules_at_once() -> None:
    """It would find them one after the other, each after an answer of the server."""
    files = assets()
    told = re.findall(r'<link rel="modulepreload" href="/static/([\w.]+)">', files["page.html"].body.decode())
    assert sorted([*told, "main.js"]) == sorted(name for name in files if name.endswith(".js"))


def test_a_simulation_as_a_page() -> None:
    words = ["simulate", "--cluster", str(EXAMPLES / "cluster.yaml"), "-f", str(EXAMPLES / "teams.yaml")]
    result = CliRunner().invoke(app, [*words, "-f", str(EXAMPLES / "too-large.yaml"), "-o", "html"])
    assert result.exit_code == 3
    found = DATA.search(result.stdout)
    assert found
    page = json.loads(found[1])
    assert {node["name"] for node in page["nodes"]} >= {"core", "exclusive", "isolated"}
    assert any(node.get("pods") for node in page["nodes"])
    assert "fits none of" in page["pending"][0]["waits"]
