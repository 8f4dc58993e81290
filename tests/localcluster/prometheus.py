"""A real Prometheus, from its Debian package, that scrapes components on this machine."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import yaml

from tests.localcluster.debian import debian_program
from tests.localcluster.ports import free_ports
from tests.localcluster.processes import Process
from tests.localcluster.skipping import skip_or_fail
from tests.localcluster.toolchain import ComponentMissing


class Prometheus:
    """A running Prometheus; ``url`` is where it is asked."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """Return what an instant query finds: labels as ``metric``, and ``value``; ``at_s`` is Unix time, else now.

        Raises:
            AssertionError: Prometheus does not take the query.
        """
        asked = {"query": expression} if at_s is None else {"query": expression, "time": f"{at_s:.3f}"}
        answer = httpx.get(f"{self.url}/api/v1/query", params=asked, timeout=30.0)
        body = json.loads(answer.text)
        assert body["status"] == "success", (expression, body)
        found: list[dict[str, Any]] = body["data"]["result"]
        return found

    def down(self) -> list[str]:
        """Return the jobs that it cannot scrape."""
        return [each["metric"]["job"] for each in self.query("up == 0")]


@contextmanager
def scraping(directory: Path, targets: Mapping[str, str], node: str) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes ``targets`` (addresses by job) each second, as the chart's PodMonitors have it.

    ``node`` is the label that the chart takes from the pod. Without the package the test fails on CI, and is skipped
    elsewhere.
    """
    try:
        program = debian_program("prometheus")
    except ComponentMissing as missing:
        skip_or_fail(missing)
    jobs = [
        {
            "job_name": job,
            "honor_labels": True,
            "static_configs": [{"targets": [address], "labels": {"node": node}}],
        }
        for job, address in targets.items()
    ]
    configuration = directory / "prometheus.yml"
    configuration.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [
        program,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with Process("prometheus", command, directory / "prometheus.log") as process:
        process.start()
        process.wait_ready(lambda: _is_ready(url))
        yield Prometheus(url)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
