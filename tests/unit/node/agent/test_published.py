"""The patch of the node, as the difference between what it says and what it should, and the labels of its GPUs."""

import re
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pynvml  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Node, NodeCondition
from gputile.api.well_known import GPU_COUNT, MODEL_COUNT_PREFIX, ConditionType, Mode
from gputile.core.devices.inventory import Gpu, model_labels
from gputile.node.agent.node_config import EffectiveMode
from gputile.node.agent.node_status import (
    Wanted,
    driver_condition,
    farewell_patch,
    gpu_condition,
    is_ours,
    node_patch,
)
from gputile.node.nvml.errors import problem_of
from gputile.node.nvml.gpu_health import Examined, Health, XidSeen
from gputile.node.nvml.probe import Mig, MigInstance, ProbedGpu, ProbedMachine

NOW = datetime(2026, 11, 20, 22, 0, 0, tzinfo=UTC)
NAME, MEMORY = "aliyun.accelerator/nvidia_name", "aliyun.accelerator/nvidia_mem"
WELL = NodeCondition(
    type=ConditionType.CARD_PROBLEM, status="False", reason="CardsHealthy", message="4 GPUs are healthy"
)


def node(
    labels: dict[str, str] | None = None,
    inventory: str | None = None,
    conditions: list[dict[str, str]] | None = None,
    offered: dict[str, str] | None = None,
) -> dict[str, Any]:
    annotations = {} if inventory is None else {"gputile.io/inventory": inventory}
    return {
        "metadata": {"name": "n", "labels": labels or {}, "annotations": {"other": "x", **annotations}},
        "status": {"conditions": conditions or [], "capacity": {**(offered or {})}, "allocatable": {**(offered or {})}},
    }


def read(document: dict[str, Any]) -> Node:
    return msgspec.convert(document, Node)


def patched(document: dict[str, Any], patch: dict[str, Any] | None) -> dict[str, Any]:
    """Apply a strategic merge patch as the API server does: maps merge, null deletes, conditions merge by type."""
    result = deepcopy(document)
    for field, values in (patch or {}).get("metadata", {}).items():
        for key, value in values.items():
            if value is None:
                result["metadata"][field].pop(key, None)
            else:
                result["metadata"][field][key] = value
    status = (patch or {}).get("status", {})
    for resources in ("capacity", "allocatable"):
        merged = {**result["status"][resources], **status.get(resources, {})}
        result["status"][resources] = {name: amount for name, amount in merged.items() if amount is not None}
    for condition in status.get("conditions", []):
        if condition.get("$patch") == "delete":
            kept = [c for c in result["status"]["conditions"] if c["type"] != condition["type"]]
            result["status"]["conditions"] = kept
            continue
        old = next((c for c in result["status"]["conditions"] if c["type"] == condition["type"]), None)
        if old is None:
            result["status"]["conditions"].append(dict(condition))
        else:
            old.update(condition)
    return result


def test_a_new_message_is_no_transition() -> None:
    settled = patched(node(), node_patch(read(node()), Wanted({}, None, (WELL,)), NOW))
    other = msgspec.structs.replace(WELL, message="8 GPUs are healthy")
    later = (NOW + timedelta(hours=1)).astimezone(timezone(timedelta(hours=2)))
    patch = node_patch(read(settled), Wanted({}, None, (other,)), later)
    assert patch is not None
    (entry,) = patch["status"]["conditions"]
    assert entry["lastHeartbeatTime"] == "2026-11-20T23:00:00Z"
    assert "lastTransitionTime" not in entry


KEYS = st.sampled_from([NAME, MEMORY, "model.gputile.io/Tesla-T4", "kubernetes.io/hostname", "team"])
OURS = st.sampled_from([NAME, MEMORY, "model.gputile.io/Tesla-T4"])
VALUES = st.sampled_from(["", "a", "b"])
TEXTS = st.none() | st.sampled_from(["{}", "[]"])
CONDITIONS = st.lists(
    st.builds(
        NodeCondition,
        type=st.sampled_from(["Ready", ConditionType.DRIVER_PROBLEM, ConditionType.CARD_PROBLEM]),
        status=st.sampled_from(["True", "False"]),
        reason=VALUES,
        message=VALUES,
    ),
    unique_by=lambda condition: condition.type,
)


@given(st.dictionaries(KEYS, VALUES), TEXTS, CONDITIONS, st.dictionaries(OURS, VALUES), TEXTS, CONDITIONS.map(tuple))
def test_the_patch_leads_to_what_is_wanted_and_touches_nothing_else(
    labels: dict[str, str],
    text: str | None,
    conditions: list[NodeCondition],
    ours: dict[str, str],
    inventory: str | None,
    wants: tuple[NodeCondition, ...],
) -> None:
    current = node(labels, text, [msgspec.to_builtins(c) for c in conditions])
    wanted = Wanted(ours, inventory, wants)
    after_patch = patched(current, node_patch(read(current), wanted, NOW))
    foreign = {key: value for key, value in labels.items() if key in ("kubernetes.io/hostname", "team")}
    assert after_patch["metadata"]["labels"] == foreign | ours
    assert after_patch["metadata"]["annotations"].get("gputile.io/inventory") == inventory
    assert after_patch["metadata"]["annotations"]["other"] == "x"
    have = {c.type: c for c in read(after_patch).status.conditions}
    assert have == {c.type: c for c in conditions} | {c.type: c for c in wants}
    assert node_patch(read(after_patch), wanted, NOW) is None


@pytest.mark.requirement("B9")
@given(st.none() | st.integers(0, 8).map(str), st.none() | st.integers(0, 8))
def test_gpushares_client_is_told_how_many_gpus_share_their_memory(before: str | None, count: int | None) -> None:
    """It shows as many columns; where another device plugin serves the node, the number is that one's."""
    offered = {"cpu": "8"} | ({GPU_COUNT: before} if before is not None else {})
    current = node(offered=offered)
    wanted = Wanted({}, None, resources={} if count is None else {GPU_COUNT: str(count)})
    after_patch = patched(current, node_patch(read(current), wanted, NOW))
    expected = offered if count is None else offered | {GPU_COUNT: str(count)}
    assert after_patch["status"]["capacity"] == after_patch["status"]["allocatable"] == expected
    assert node_patch(read(after_patch), wanted, NOW) is None


def machine(**facts: Any) -> ProbedMachine:
    instance = MigInstance("MIG-a", "1g.10gb", 9728, 7, 0)
    gpus = (
        ProbedGpu(0, "GPU-a", "Tesla T4", 15109, "00000000:07:00.0"),
        ProbedGpu(1, "GPU-b", "NVIDIA A100", 81920, "00000000:0F:00.0", mig=Mig.ON, instances=(instance,)),
    )
    return ProbedMachine(**{"gpus": gpus, "driver": "570.1", "cuda": (12, 8), **facts})


def told(
    machine: ProbedMachine, health: Health | None = None, mode: Mode = Mode.EXCLUSIVE, shared_mib: int = 0
) -> list[tuple[str, str, str]]:
    conditions = (
        driver_condition(machine),
        gpu_condition(machine, health or Health(), EffectiveMode(mode, 1024, shared_mib=shared_mib)),
    )
    return [(c.status, c.reason, c.message) for c in conditions]


def test_a_machine_that_is_well_says_so() -> None:
    assert told(machine()) == [
        ("False", "DriverAnswers", "driver 570.1, CUDA up to 12.8, 2 GPUs"),
        ("False", "CardsHealthy", "2 GPUs are healthy"),
    ]


def test_a_machine_without_a_driver_names_the_remedy() -> None:
    driver, gpu = told(ProbedMachine(down=problem_of(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)))
    assert driver[:2] == ("True", "DriverMissing")
    assert "install the NVIDIA driver" in driver[2]
    assert gpu[:2] == ("Unknown", "DriverMissing")


def test_ill_gpus_and_instances_are_named_with_the_reason() -> None:
    health = Health().after([XidSeen("GPU-a", 79), Examined("MIG-a", "it is lost")], 0.0)
    assert told(machine(), health)[1] == (
        "True",
        "CardUnhealthy",
        "GPU 0 (GPU-a): XID 79; GPU 1 instance 1g.10gb (MIG-a): it is lost",
    )


def test_a_gpu_that_shares_the_machines_memory_is_named_in_modes_that_share_by_memory() -> None:
    spark = ProbedMachine((ProbedGpu(0, "GPU-a", "NVIDIA GB10", 122570, "0000000F:01:00.0", unified=True),))
    assert told(spark)[1][:2] == ("False", "CardsHealthy")
    status, reason, message = told(spark, mode=Mode.CGPU)[1]
    assert (status, reason) == ("True", "CardWithoutMemory")
    assert "NVIDIA GB10 has no memory of its own: set the label gputile.io/shared-memory" in message
    assert told(spark, mode=Mode.CGPU, shared_mib=65536)[1][0] == "False"


@pytest.mark.requirement("U11")
def test_a_node_whose_gpus_are_gone_says_nothing_of_them() -> None:
    """What others say of it stays, the controller's condition included."""
    ready, silent = {"type": "Ready", "status": "True"}, {"type": "gputile.io/AgentSilent", "status": "True"}
    said = {"type": ConditionType.DRIVER_PROBLEM, "status": "True"}
    labels = {NAME: "Tesla-T4", "model.gputile.io/Tesla-T4": "4", "zone": "a"}
    before = node(labels, "{}", [ready, said, silent], {"cpu": "8", GPU_COUNT: "4"})
    after_it = patched(before, farewell_patch(read(before)))
    assert after_it["metadata"]["labels"] == {"zone": "a"}
    assert after_it["metadata"]["annotations"] == {"other": "x"}
    assert after_it["status"]["conditions"] == [ready, silent]
    assert after_it["status"]["capacity"] == after_it["status"]["allocatable"] == {"cpu": "8"}
    assert farewell_patch(read(after_it)) is None


def test_labels_of_a_node_that_no_agent_has_spoken_of_are_others() -> None:
    assert farewell_patch(read(node({NAME: "Tesla-T4"}, None, [{"type": "Ready", "status": "True"}]))) is None


LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")  # Kubernetes' own rule


def gpus(*kinds: tuple[str, int]) -> list[Gpu]:
    return [Gpu(index=i, uuid=f"GPU-{i}", model=model, mib=mib) for i, (model, mib) in enumerate(kinds)]


def test_gpus_that_differ_are_told_without_lying() -> None:
    assert model_labels(gpus(("Tesla T4", 15109), ("Tesla V100-PCIE-16GB", 16130), ("Tesla T4", 15109))) == {
        "aliyun.accelerator/nvidia_count": "3",
        "model.gputile.io/Tesla-T4": "2",
        "model.gputile.io/Tesla-V100-PCIE-16GB": "1",
    }


@given(st.lists(st.tuples(st.text(max_size=96), st.integers(1, 2**24)), max_size=8))
def test_every_label_is_valid_and_ours_whatever_the_driver_says(kinds: list[tuple[str, int]]) -> None:
    for key, value in model_labels(gpus(*kinds)).items():
        assert is_ours(key)
        assert LABEL_VALUE.fullmatch(value)
        if key.startswith(MODEL_COUNT_PREFIX):
            assert LABEL_VALUE.fullmatch(key.removeprefix(MODEL_COUNT_PREFIX))
