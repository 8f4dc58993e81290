"""An environment's proxy is used where kubectl uses it."""

import pytest

from gputile.kube.proxies import Proxy, environment_proxy

PROXY = {"HTTPS_PROXY": "http://proxy:3128", "HTTP_PROXY": "http://plain:3128"}


@pytest.mark.parametrize(
    ("server", "no_proxy", "direct"),
    [
        ("https://localhost:6443", "", True),
        ("https://127.0.0.1:6443", "", True),
        ("https://[::1]:6443", "", True),
        ("https://10.1.2.3", "", False),
        ("https://10.1.2.3", " 192.168.0.0/16 , 10.0.0.0/8", True),
        ("https://10.1.2.3", "10.1.2.3", True),
        ("https://10.1.2.3", "10.1.2.3:443", True),
        ("https://10.1.2.3", "10.1.2.3:6443", False),
        ("https://110.1.2.3", "10.1.2.3", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://[fd00::1]:6443", "[fd00::1]:443", False),
        ("https://API.Example.com", "example.com", True),
        ("https://example.com:6443", "example.com:443", False),
        ("https://badexample.com", "example.com", False),
        ("https://api.example.com", ".example.com", True),
        ("https://example.com", ".example.com", False),
        ("https://api.example.com", "*.example.com", True),
        ("https://example.com", "*.example.com", False),
        ("https://api.example.com", "*", True),
    ],
)
def test_where_no_proxy_counts(server: str, no_proxy: str, direct: bool) -> None:
    found = environment_proxy(server, {**PROXY, "NO_PROXY": no_proxy})
    assert (found is None) is direct


def test_which_variable_counts() -> None:
    """The capital one goes first, an empty one counts for nothing, and a scheme has its own."""
    assert environment_proxy("https://a", {}) is None
    assert environment_proxy("http://a", PROXY) == Proxy("http://plain:3128", "HTTP_PROXY")
    both = {"https_proxy": "http://small:1", "no_proxy": "a"}
    assert environment_proxy("https://b", both) == Proxy("http://small:1", "https_proxy")
    assert environment_proxy("https://b", {**both, "HTTPS_PROXY": ""}) == Proxy("http://small:1", "https_proxy")
    assert environment_proxy("https://b", {**both, **PROXY}) == Proxy("http://proxy:3128", "HTTPS_PROXY")
    assert environment_proxy("https://a", both) is None
    assert environment_proxy("https://a", {"HTTPS_PROXY": "host:3128"}) == Proxy("http://host:3128", "HTTPS_PROXY")
    assert environment_proxy("https://a", {"ALL_PROXY": "http://host:3128"}) is None
