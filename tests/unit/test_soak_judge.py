"""The soak's judge sees what it is there to see: each promise broken once, by hand."""

import json
from typing import Any

import pytest

from tests.soak.system.deaths import died_of, raised
from tests.soak.system.findings import Findings
from tests.soak.system.judge import Gang, Rules, over_allocations
from tests.soak.system.lives import Lives
from tests.soak.system.memory import Memory
from tests.soak.system.objects import reason_pending
from tests.soak.system.workload import Planned, workload

RULES = Rules(pods_per_gpu=3, groups={"a": "ab", "b": "ab"})
NODE = {
    "metadata": {
        "name": "n",
        "annotations": {
            "gputile.io/inventory": json.dumps(
                {"version": 1, "cards": [{"index": i, "uuid": f"u{i}", "mib": 16384} for i in (0, 1)]}
            )
        },
    }
}
Json = dict[str, Any]


def share(uuid: str, mib: int, percent: int = 0) -> Json:
    return {"uuid": uuid, "index": int(uuid[1:]), "mib": mib, "percent": percent}


def pod(name: str, limits: Json, *gpus: Json, namespace: str = "a", labels: Json | None = None, **claim: Any) -> Json:
    body = {"version": 1, "unit_mib": 1024, "mode": "cgpu", "cards": gpus, "containers": {"main": gpus}, **claim}
    annotations = {"gputile.io/allocation": json.dumps(body)} if gpus else {}
    container = {"name": "main", "resources": {"limits": {name: str(n) for name, n in limits.items()}}}
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations, "labels": labels or {}},
        "spec": {"nodeName": "n", "containers": [container]},
        "status": {"phase": "Running"},
    }


def memory(name: str, units: int, uuid: str = "u0", **more: Any) -> Json:
    return pod(name, {"aliyun.com/gpu-mem": units}, share(uuid, units * 1024), **more)


def whole(name: str, uuid: str = "u0") -> Json:
    return pod(name, {"nvidia.com/gpu": 1}, share(uuid, 16384, 100), whole=True, mode="default")


def test_gpus_that_are_exactly_full_are_right() -> None:
    pods = [memory("one", 8), memory("two", 8), whole("three", "u1")]
    assert over_allocations([NODE], pods, RULES) == []


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([memory("one", 8), memory("two", 9)], "17408 MiB are booked by ['a/one', 'a/two']"),
        ([whole("one"), memory("two", 1)], "given whole to ['a/one']"),
        ([whole("one"), whole("two")], "given whole to ['a/one', 'a/two']"),
        ([memory(f"p{i}", 1) for i in range(4)], "has 4 pods, and 3 are allowed"),
        ([memory("one", 1, mode="share"), memory("two", 1, mode="share", namespace="c")], "is shared by ['ab', 'c']"),
        ([memory("one", 1, uuid="u7")], "is none of the node's"),
        ([pod("one", {"aliyun.com/gpu-mem": 2}, share("u0", 1024))], "1024, 0) MiB and percent are booked"),
        ([pod("one", {"nvidia.com/gpu": 2}, share("u0", 16384, 100), whole=True)], "1 GPUs are booked, 2 asked for"),
        ([pod("one", {"aliyun.com/gpu-mem": 2})], "bound to n without an allocation"),
        ([memory("one", 1, version=2)], "cannot be read: version 2"),
        (
            [
                pod(f"p{i}", {"aliyun.com/gpu-mem": 1, "aliyun.com/gpu-core.percentage": 60}, share("u0", 1024, 60))
                for i in (0, 1)
            ],
            "is booked with 120 percent",
        ),
    ],
)
def test_each_way_to_be_wrong_is_seen(pods: list[Json], said: str) -> None:
    wrong = over_allocations([NODE], pods, RULES)
    assert any(said in text for text in wrong), wrong


def test_a_real_kubelet_may_put_a_shared_pod_on_fewer_gpus_and_never_a_whole_one() -> None:
    rules = Rules(3, {}, kubelets=frozenset({"n"}))
    shared = pod("one", {"aliyun.com/gpu-mem": 2}, share("u0", 2048), labels={"aliyun.com/gpu-count": "2"})
    assert over_allocations([NODE], [shared], rules) == []
    assert over_allocations([NODE], [shared], RULES) == ["a/one: 1 GPUs are booked, 2 asked for"]
    gpus = pod("two", {"nvidia.com/gpu": 2}, share("u1", 16384, 100), whole=True)
    assert over_allocations([NODE], [gpus], rules) == ["a/two: 1 GPUs are booked, 2 asked for"]


def test_pods_that_have_ended_hold_nothing_and_trusted_ones_may_share() -> None:
    ended = memory("two", 16)
    ended["status"]["phase"] = "Succeeded"
    pods = [memory("one", 8, mode="share"), memory("three", 8, mode="share", namespace="b"), ended]
    assert over_allocations([NODE], pods, RULES) == []


def test_a_gang_is_in_part_until_its_last_pod_is_bound() -> None:
    gang = Gang(2)
    gang.see("one", 10.0)
    assert gang.in_part_for(15.0) == 5.0
    gang.see("two", 17.0)
    assert gang.in_part_for(99.0) == 7.0


def test_a_pod_that_vanishes_or_fails_without_our_doing_is_told_with_its_story() -> None:
    findings = Findings()
    lives = Lives(findings)
    for name in ("one", "two"):
        lives.announce(Planned("shared", "a", name, {}, 1.0, "succeeds"))
    lives.take("ADDED", memory("one", 1))
    lives.take("DELETED", memory("one", 1))
    failed = memory("two", 1)
    failed["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
    lives.take("MODIFIED", failed)
    promises = {each.promise for each in findings.violations}
    assert promises == {"no pod is lost", "no pod fails for good but for what the pages name"}
    assert any("is bound to n" in line for line in findings.violations[0].story)


def test_what_a_kubelet_without_a_plugin_fails_is_counted_only() -> None:
    findings = Findings()
    lives = Lives(findings)
    lives.announce(Planned("real", "a", "one", {}, 1.0, "deleted", real=True))
    failed = memory("one", 1)
    failed["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
    lives.take("ADDED", failed)
    assert not findings.broken()
    assert findings.counts["pods failed by a kubelet without a plugin: no healthy devices"] == 1


def test_a_pod_whose_runtime_dies_while_it_is_deleted_has_not_failed_for_good() -> None:
    findings = Findings()
    lives = Lives(findings)
    for name in ("deleted", "left-alone"):
        lives.announce(Planned("real", "a", name, {}, 1.0, "deleted", real=True))
        lives.take("ADDED", memory(name, 1))
    lives.delete_for(lives.all["a/deleted"], "its time is over")
    for name in ("deleted", "left-alone"):
        lives.take("MODIFIED", {**memory(name, 1), "status": {"phase": "Failed"}})
    assert [each.text for each in findings.violations] == ["a/left-alone: : "]


def test_a_pending_pod_says_why() -> None:
    waiting = memory("one", 1)
    assert reason_pending(waiting) == ""
    waiting["spec"]["schedulingGates"] = [{"name": "gputile.io/gang"}]
    assert "gputile.io/gang" in reason_pending(waiting)


def test_an_error_that_ends_a_program_is_told_from_one_that_it_survives() -> None:
    line = '{"ts":1.5,"level":"info","msg":"gang g: 2 pods have their places"}\n'
    plain = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: no such thing\n'
    group = (
        "  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: unhandled errors\n"
        "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
        '    |   File "a.py", line 1, in run\n    | LedgerError: pod a/b already holds GPUs\n'
        "    +------------------------------------\n"
    )
    assert died_of(line + plain) == "ValueError: no such thing"
    assert died_of(line + group) == "LedgerError: pod a/b already holds GPUs"
    assert died_of(line) == ""
    assert died_of(plain + line) == ""
    assert died_of(f"{plain}2026-11-22 07:45:50,386 ERROR agent: cannot listen\n") == ""


def test_every_error_that_a_log_has_a_traceback_of_is_found() -> None:
    """A component may have gone on, and its child process have died."""
    child = 'Traceback (most recent call last):\n  File "a.py", line 1, in run\nKeyError: 3\n'
    line = '{"ts":"2026-11-22T04:27:43.704Z","level":"error","message":"the arbiter ended with exit code 1"}\n'
    logged = '{"ts":"2026-11-22T04:27:43.704Z","error":"Traceback (most recent call last):\\n  ValueError: 4"}\n'
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert raised(line) == []
    assert raised(line + child + line) == ["KeyError: 3"]
    assert raised(child + line + child.replace("3", "4") + line) == ["KeyError: 3", "KeyError: 4"]
    assert raised(child + chain + child.replace("3", "5") + line) == ["KeyError: 5"]
    assert raised(line + logged + line) == [], "the component expects it"
    said = "2026-11-22 07:45:50,386 ERROR agent: cannot write the state\n"
    assert raised(said + child + said + line) == [], "in text too"
    assert raised(said.replace("ERROR", "INFO") + child + said) == ["KeyError: 3"]


def test_a_process_that_grows_is_told_of() -> None:
    memory = Memory()
    for second in range(0, 400, 5):
        memory.sample({"extender-a": (1, 100.0 + second), "extender-b": (2, 100.0)}, float(second))
    assert [text.split()[0] for text in memory.grown(400.0)] == ["extender-a"]


def test_one_seed_is_one_workload_with_every_kind_of_pod() -> None:
    first = list(workload(7, 3000, 50))
    assert [(each.key, each.body) for each in first] == [(each.key, each.body) for each in workload(7, 3000, 50)]
    assert len({each.kind for each in first}) == 11
    assert len({each.key for each in first}) == len(first) >= 3000
