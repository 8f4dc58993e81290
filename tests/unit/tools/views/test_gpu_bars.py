"""GPUs drawn as bars: every GPU, at every width, with pieces that add up."""

import re
import string
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputile.tools.views.gpu_bars import Bar, Canvas, Line, NodeBars, draw, groups_of, node_bars
from gputile.tools.views.inspect import GpuSummary, NodeSummary, PodSummary
from gputile.tools.views.terminal_text import columns_of

pytestmark = pytest.mark.requirement("V2", "V3")

WIDTHS = [60, 80, 138, 200]
UNIT = 1024


def gpu(index: int, used: int, total: int = 15, pods: int = 1) -> GpuSummary:
    return GpuSummary(index, f"GPU-{index}", "T4", total * UNIT, used * UNIT, 0, pods, healthy=True)


def pod(name: str, namespace: str = "ns", whole: bool = False, **units: int) -> PodSummary:
    """Return a pod with units by GPU: ``g0=3``."""
    mib = {int(key[1:]): amount * UNIT for key, amount in units.items()}
    return PodSummary(namespace, name, mib, whole, sum(mib.values()))


def node(name: str, gpus: list[GpuSummary], *pods: PodSummary, mode: str = "share") -> NodeSummary:
    return NodeSummary(name, "192.0.2.1", mode, mode == "share", UNIT, gpus, list(pods))


def drawn(nodes: list[NodeSummary], canvas: Canvas) -> list[str]:
    bars = node_bars(nodes, lambda pod: pod.namespace)
    return texts(draw(bars, groups_of(bars), canvas))


def texts(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in line) for line in lines]


def test_whole_gpus_time_sliced_gpus_and_mig_instances() -> None:
    """MIG instances are GPUs of their own sizes."""
    v100 = GpuSummary(0, "GPU-0", "V100", 32510, 32510, 100, 1, healthy=True)
    whole = node("whole", [v100], PodSummary("ns", "p", {0: 32510}, whole=True, asked_mib=0), mode="default")
    pods = (PodSummary("ns", f"p{i}", {0: 15 * UNIT}, whole=True, asked_mib=0, slices={0: i}) for i in (1, 2))
    sliced = node("sliced", [gpu(0, 15, pods=3)], *pods, mode="default")
    mig = node("mig", [gpu(0, 5, 5), gpu(1, 0, 10)], pod("p", whole=True, g0=5), mode="default")
    lines = drawn([whole, msgspec.structs.replace(sliced, replicas=4), mig], Canvas(80))
    assert [re.findall(r"[\d.]+/[\d.]+", line) for line in lines[1:4]] == [["31.7/31.7"], ["3/4"], []]
    assert "time-sliced: counted in time slices" in lines[3]
    assert re.findall(r"\d+/\d+", lines[4]) == ["5/5", "0/10"]


def test_what_no_bar_shows_is_said() -> None:
    unhealthy = msgspec.structs.replace(gpu(1, 0), healthy=False)
    lost = PodSummary("ns", "lost", {}, whole=False, asked_mib=3 * UNIT, problem="bound by hand")
    lines = drawn([node("n", [gpu(0, 0), unhealthy], lost)], Canvas(60))
    assert "1 ╳╳╳" in lines[1]
    assert [line.strip() for line in lines[2:4]] == [
        "GPU 1 is unhealthy",
        "in addition, 3 GiB of pods whose GPUs are unknown",
    ]
    assert lines[-1] == "░ free  ╳ unhealthy"


def test_no_gpu_at_all() -> None:
    broken = NodeSummary("b", "192.0.2.1", "share", True, UNIT, [], [], "its annotation cannot be read")
    assert drawn([], Canvas(60)) == ["No node has GPUs."]
    assert drawn([broken], Canvas(60)) == ["No node has GPUs.", "b: its annotation cannot be read"]


def test_more_groups_than_letters_or_cells() -> None:
    """The smallest are drawn together; nothing that is used looks free."""
    pods = [pod(f"p{number:02}", f"ns{number:02}", g0=1) for number in range(60)]
    lines = drawn([node("n", [gpu(0, 60, 60)], *pods)], Canvas(60))
    bar = lines[1].split()[2]
    assert "░" not in bar
    assert "*" in bar
    assert any("* others" in line for line in lines)


@st.composite
def clusters(draw_: st.DrawFn) -> list[NodeBars]:
    names = st.text(alphabet=string.ascii_letters + "名.-\x1b[]", min_size=1, max_size=70)
    groups = draw_(st.lists(names, min_size=1, max_size=70))
    nodes = []
    for name in draw_(st.lists(names, max_size=4)):
        bars = []
        for index in range(draw_(st.integers(0, 9))):
            pieces = draw_(st.dictionaries(st.sampled_from(groups), st.integers(1, 700), max_size=20))
            used = sum(pieces.values())
            bars.append(Bar(index, pieces, used, used + draw_(st.integers(0, 700)), draw_(st.booleans())))
        nodes.append(NodeBars(name, bars, draw_(st.lists(names, max_size=1))))
    return nodes


@given(
    clusters(),
    st.builds(Canvas, st.one_of(st.sampled_from(WIDTHS), st.integers(60, 200)), st.booleans(), st.booleans()),
)
def test_every_gpu_is_drawn_and_fits_the_terminal(nodes: list[NodeBars], canvas: Canvas) -> None:
    groups = groups_of(nodes)
    lines = draw(nodes, groups, canvas)
    assert max(map(columns_of, texts(lines))) <= canvas.columns
    amounts = [span.text.strip() for line in lines for span in line if re.fullmatch(r" [\d.]+/[\d.]+ *", span.text)]
    assert amounts == [bar.amounts for node in nodes for bar in node.bars]
    assert all("\x1b" not in text for text in texts(lines))


@given(st.dictionaries(st.integers(0, 30).map(str), st.integers(1, 50), max_size=20), st.integers(0, 200))
@example({"0": 1, "1": 23, "2": 22, "3": 1}, 1)
def test_pieces_add_up(pieces: dict[str, int], free: int) -> None:
    """Each piece has a cell at least, and so has what is free; a larger piece has no fewer cells than a smaller one."""
    used = sum(pieces.values())
    nodes = [NodeBars("n", [Bar(0, pieces, used, used + free)], [])]
    groups = groups_of(nodes)
    (_, line, *_) = draw(nodes, groups, Canvas(80))
    drawn_groups = {span.group: len(span.text) for span in line if span.group is not None}
    rest = sum(len(span.text) for span in line if span.faint)
    assert sum(drawn_groups.values()) + rest == 24
    assert (rest > 0) == (free > 0 or not pieces)
    assert set(drawn_groups) == {groups.number(name) for name in pieces}
    sizes = sorted((pieces[name], drawn_groups[groups.number(name)]) for name in pieces)
    assert all(small[1] <= large[1] for small, large in pairwise(sizes) if small[0] < large[0])
