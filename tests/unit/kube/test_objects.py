"""Lists in pages: what is taken for one, and when a list has gone on for too long."""

import json
from typing import Any

import pytest

from gputile.api.core import Node, Pod
from gputile.kube.errors import BadAnswer
from gputile.kube.objects import NO_QUERY, ObjectDecoder, Query, list_pages

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B4")]


class Pages:
    """A cluster of ``pages`` pages of ``each`` objects; what an API server answers to a limit and a token."""

    def __init__(self, pages: int, each: int, kind: str = "") -> None:
        self.pages, self.each, self.kind = pages, each, kind

    async def get(self, path: str, query: Query = NO_QUERY, *, within: float | None = None) -> bytes:
        number = int(query.get("continue", "0")) + 1
        metadata: dict[str, Any] = {"resourceVersion": "7"}
        if number < self.pages:
            metadata["continue"] = str(number)
        items = [{"metadata": {"name": f"p{number}-{i}"}} for i in range(self.each)]
        return json.dumps({"kind": self.kind, "metadata": metadata, "items": items}).encode()


async def test_a_hundred_thousand_pods_are_read_in_pages() -> None:
    version, listed = await list_pages(Pages(200, 500, "PodList"), "/api/v1/pods", ObjectDecoder(Pod), {})
    assert (version, len(listed.objects)) == ("7", 100_000)


@pytest.mark.parametrize(
    ("each", "said"),
    [
        (500, "after 600 pages with 300,000 objects"),
        (499, "after 100 pages with 49,900 objects, 100 of them not full"),
        (0, "after 100 pages with 0 objects, 100 of them not full"),
    ],
)
async def test_a_list_without_end_is_no_api_servers(each: int, said: str) -> None:
    with pytest.raises(BadAnswer, match=rf"^GET /api/v1/nodes: the list goes on {said}.*API server\?$"):
        await list_pages(Pages(10**9, each), "/api/v1/nodes", ObjectDecoder(Node), {})


@pytest.mark.parametrize("kind", ["SecretList", "NodeList", "Status", "PodGroupList", "x" * 500])
async def test_a_list_of_another_kind_is_refused(kind: str) -> None:
    with pytest.raises(BadAnswer, match=r"^GET /api/v1/pods: the answer is of kind .* no list of pods: is the server"):
        await list_pages(Pages(1, 1, kind), "/api/v1/pods", ObjectDecoder(Pod), {})


@pytest.mark.parametrize("kind", ["PodList", "List", ""])
async def test_a_list_of_its_kind_is_one(kind: str) -> None:
    _, listed = await list_pages(Pages(1, 1, kind), "/api/v1/namespaces/n/pods", ObjectDecoder(Pod), {})
    assert len(listed.objects) == 1


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/apis/scheduling.k8s.io/v1/priorityclasses", "PriorityClassList"),
        ("/apis/networking.k8s.io/v1/networkpolicies", "NetworkPolicyList"),
        ("/api/v1/endpoints", "EndpointsList"),
    ],
)
async def test_a_plural_may_have_another_end(path: str, kind: str) -> None:
    _, listed = await list_pages(Pages(1, 1, kind), path, ObjectDecoder(Node), {})
    assert len(listed.objects) == 1
