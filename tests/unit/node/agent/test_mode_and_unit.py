"""Which mode and unit are in force, and what people are told."""

import pytest

from gputile.api.config.v1alpha1 import Configuration, Features
from gputile.api.core import NodeCondition
from gputile.api.well_known import (
    MODE_LABEL,
    MODES,
    REPLICAS_LABEL,
    SHARED_MEMORY_LABEL,
    SHARING_LABEL,
    ConditionType,
    Mode,
)
from gputile.core.devices.inventory import Gpu
from gputile.node.agent.allocation_state import ModeDecision
from gputile.node.agent.mode import LabelError, asked_for, decide_mode
from gputile.node.agent.node_config import EffectiveMode, Sharing
from gputile.node.agent.node_status import placement_condition

GPUS = (Gpu(0, "GPU-0", 15360),)
SHARE = EffectiveMode(Mode.SHARE, 1024)


def configured(unit_mib: int, features: Features | None = None) -> Configuration:
    return Configuration(gpu_memory_unit=f"{unit_mib}MiB", features=features or Features())


def condition(made: ModeDecision, kind: str) -> NodeCondition:
    return next(c for c in made.conditions if c.type == kind)


def test_a_node_that_joins_takes_its_labels_at_once() -> None:
    assert decide_mode(None, {MODE_LABEL: "share"}, configured(128), GPUS, ["ns/a"]).effective_mode == EffectiveMode(
        Mode.SHARE, 128
    )
    assert decide_mode(None, {}, configured(1024), GPUS, []).effective_mode == EffectiveMode(Mode.EXCLUSIVE, 1024)


def test_a_change_is_held_by_pods_which_are_named() -> None:
    pods = [f"ns/p{i:02d}" for i in range(14)]
    held = decide_mode(SHARE, {MODE_LABEL: "cgpu"}, configured(1024), GPUS, pods)
    assert held.effective_mode == SHARE
    text = condition(held, ConditionType.MODE_PENDING).message
    assert condition(held, ConditionType.MODE_PENDING).status == "True"
    assert "mode share stays in force" in text
    assert "ns/p00" in text
    assert "and 4 more" in text
    assert "mode cgpu follows when these pods have ended" in text


def test_a_wrong_mode_changes_nothing() -> None:
    made = decide_mode(SHARE, {MODE_LABEL: "exclusive"}, configured(1024), GPUS, [])
    assert made.effective_mode == SHARE
    assert all(mode in condition(made, ConditionType.MODE_PENDING).message for mode in MODES)


def test_a_unit_that_is_too_small_leaves_the_one_before() -> None:
    large = tuple(Gpu(i, f"GPU-{i}", 1024 * 1024) for i in range(16))
    made = decide_mode(SHARE, {MODE_LABEL: "share"}, configured(64), large, [])
    assert made.effective_mode == SHARE
    assert condition(made, ConditionType.MEMORY_UNIT_REFUSED).status == "True"


def test_ways_of_sharing_whole_gpus() -> None:
    asked = asked_for({SHARING_LABEL: "time-slicing", REPLICAS_LABEL: "4"})
    assert asked == EffectiveMode(Mode.EXCLUSIVE, 0, Sharing.TIME_SLICING, 4)
    assert asked_for({SHARING_LABEL: "mig"}).sharing is Sharing.MIG
    for labels in (
        {SHARING_LABEL: "both"},
        {SHARING_LABEL: "time-slicing"},
        {SHARING_LABEL: "time-slicing", REPLICAS_LABEL: "1"},
        {SHARING_LABEL: "time-slicing", REPLICAS_LABEL: "many"},
        {SHARING_LABEL: "mig", MODE_LABEL: "share"},
    ):
        with pytest.raises(LabelError, match="the label "):
            asked_for(labels)


def test_a_part_of_each_gpus_memory_is_kept_back_where_memory_is_shared() -> None:
    """For the driver; or to say how much of the machine's memory is a GPU's that has none of its own."""
    part = {SHARED_MEMORY_LABEL: "14GiB"}
    assert asked_for({MODE_LABEL: "cgpu", **part}) == EffectiveMode(Mode.CGPU, 0, shared_mib=14336)
    assert asked_for(part) == EffectiveMode(Mode.EXCLUSIVE, 0)
    for text in ("14", "0MiB", "14GB"):
        with pytest.raises(LabelError, match=SHARED_MEMORY_LABEL):
            asked_for({MODE_LABEL: "cgpu", SHARED_MEMORY_LABEL: text})


@pytest.mark.requirement("M13")
@pytest.mark.parametrize(
    ("mode", "features", "expected"),
    [
        ("mps", Features(sharing=False), Mode.EXCLUSIVE),
        ("topology", Features(sharing=False), Mode.TOPOLOGY),
        ("topology", Features(topology=False), Mode.EXCLUSIVE),
        ("default", Features(sharing=False, topology=False), Mode.EXCLUSIVE),
    ],
)
def test_a_mode_whose_feature_is_not_enabled_leaves_whole_gpus_and_says_so(
    mode: str, features: Features, expected: Mode
) -> None:
    made = decide_mode(None, {MODE_LABEL: mode}, configured(1024, features), GPUS, [])
    assert made.effective_mode.mode is expected
    told = condition(made, ConditionType.MODE_PENDING)
    assert (told.status, told.reason) == (("False", "ModeInForce") if expected == mode else ("True", "FeatureDisabled"))


@pytest.mark.requirement("M12", "M13")
def test_a_feature_that_is_switched_off_waits_for_the_pods_like_a_change_of_mode() -> None:
    off = Features(sharing=False)
    held = decide_mode(SHARE, {MODE_LABEL: "share"}, configured(1024, off), GPUS, ["ns/a"])
    assert held.effective_mode == SHARE
    assert condition(held, ConditionType.MODE_PENDING).reason == "PodsOnNode"
    assert (
        decide_mode(SHARE, {MODE_LABEL: "share"}, configured(1024, off), GPUS, []).effective_mode.mode is Mode.EXCLUSIVE
    )


@pytest.mark.requirement("M9")
@pytest.mark.parametrize(
    ("value", "status"), [("foo", "True"), ("", "True"), ("spread", "False"), ("packing", "False")]
)
def test_a_placement_that_is_not_known_is_told_with_the_valid_ones_m9(value: str, status: str) -> None:
    told = placement_condition({"ack.node.gpu.placement": value})
    assert told.status == status
    assert (told.status == "True") == ("valid are binpack, spread, packing" in told.message)
    assert placement_condition({}).status == "False"
