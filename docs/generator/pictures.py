"""The drawn pictures of docs/concepts; ``python -m docs.generator`` writes them into docs/pictures."""

from docs.generator.drawing import Drawing
from docs.generator.growth import growth
from docs.generator.screenshot import screenshot


def pod() -> str:
    """Draw a pod's way from its manifest to its GPU."""
    drawing = Drawing(860, 376, "A pod's way: admission, scheduling, binding, allocation, start")
    drawing.frame(10, 10, 840, 176, "control plane")
    drawing.box(24, 48, 120, 56, "manifest\ngpu-mem: 16", "grey")
    drawing.box(220, 48, 130, 56, "API server\nthe ledger", "violet")
    drawing.box(220, 136, 130, 40, "webhook", "blue")
    drawing.box(440, 48, 150, 56, "kube-scheduler\nunmodified", "violet")
    drawing.box(686, 48, 150, 56, "extender\nledger + placement", "blue")
    drawing.arrow((144, 76), (218, 76))
    drawing.words(150, 66, "1 create")
    drawing.arrow((285, 106), (285, 134), both=True)
    drawing.words(296, 124, "2 complete, or refuse")
    drawing.arrow((352, 70), (438, 70))
    drawing.words(366, 62, "3 pending")
    drawing.arrow((592, 66), (684, 66), both=True)
    drawing.words(598, 56, "4 filter, rank")
    drawing.arrow((592, 90), (684, 90))
    drawing.words(610, 106, "5 bind")
    drawing.arrow((760, 106), (760, 164), (430, 164), (430, 90), (352, 90))
    drawing.words(440, 156, "6 one write: node, GPUs and amounts (annotation)")
    drawing.frame(10, 204, 840, 160, "node")
    drawing.box(24, 252, 130, 56, "kubelet\nunmodified", "violet")
    drawing.box(234, 252, 130, 56, "gateway\nkeeps the calls", "blue")
    drawing.box(444, 252, 130, 56, "agent\nthe right GPU", "blue")
    drawing.box(674, 240, 162, 80, "container\nlibrary in front of\nthe CUDA driver", "amber")
    drawing.arrow((236, 106), (236, 112), (70, 112), (70, 250))
    drawing.words(78, 230, "7 watch")
    drawing.arrow((156, 280), (232, 280), both=True)
    drawing.words(162, 270, "8 Allocate")
    drawing.arrow((366, 280), (442, 280), both=True)
    drawing.arrow((576, 280), (672, 280))
    drawing.words(584, 270, "9 limits, GPUs")
    drawing.words(444, 330, "10 If the kubelet chose another GPU,")
    drawing.words(444, 346, "correct the annotation.")
    return drawing.svg()


def sharing() -> str:
    """Draw two containers that share a GPU: memory by limits, time by turns."""
    drawing = Drawing(860, 400, "Two containers on one GPU: each has its own memory limit, and they take turns")
    for x, name, amount in ((10, "container A", "4 GiB, 25 %"), (300, "container B", "8 GiB, 75 %")):
        drawing.frame(x, 10, 270, 132, f"{name}: {amount}")
        drawing.box(x + 14, 40, 242, 36, "program and CUDA runtime", "grey")
        drawing.box(x + 14, 92, 242, 38, "libgputile-cuda.so", "amber")
        drawing.arrow((x + 135, 78), (x + 135, 90))
        drawing.arrow((x + 135, 132), (x + 135, 186))
    drawing.box(640, 40, 210, 90, "arbiter\nturns of 30 ms by\nweights and guarantees", "blue")
    drawing.arrow((558, 111), (638, 111), both=True)
    drawing.arrow((268, 111), (285, 111), (285, 148), (700, 148), (700, 132), both=True)
    drawing.words(604, 100, "turns", at="middle")
    drawing.words(160, 166, "Requests above the limit are refused")
    drawing.words(160, 181, "before they reach the driver.")
    drawing.frame(10, 188, 840, 200, "one GPU of 16 GiB")
    drawing.words(24, 236, "memory", bold=True)
    drawing.box(120, 216, 180, 34, "A: 4 GiB", "teal")
    drawing.box(304, 216, 360, 34, "B: 8 GiB", "violet")
    drawing.box(668, 216, 168, 34, "free: 4 GiB", "grey")
    drawing.words(24, 306, "time", bold=True)
    x = 120
    for name, width in (("A", 44), ("B", 132), ("A", 44), ("B", 132), ("A", 44), ("B", 132), ("A", 44), ("B", 144)):
        drawing.box(x, 286, width - 2, 34, name, "teal" if name == "A" else "violet")
        x += width
    drawing.arrow((120, 336), (836, 336))
    drawing.words(
        120,
        358,
        "While both want the GPU, A has it for a quarter of the time. Alone in mode cgpu, either has all of it.",
    )
    return drawing.svg()


def gang() -> str:
    """Draw how the pods of a gang start: reserved together, begun by one Binding."""
    drawing = Drawing(860, 350, "A gang of four pods: gated, planned, reserved, and begun by the Binding of the first")
    steps = (
        ("1 gated", "The webhook puts each pod\nbehind a scheduling gate."),
        ("2 planned", "The controller finds GPUs\nfor all four, or for none."),
        ("3 reserved", "Each pod's reservation is\nan annotation of the pod."),
        ("4 begun", "The Binding of the first\npod begins the plan."),
    )
    for column, (name, text) in enumerate(steps):
        x = 10 + 214 * column
        drawing.frame(x, 10, 198, 250, name)
        for row in range(4):
            state, fill = (
                ("waits", "grey"),
                ("GPU found", "violet"),
                ("GPU reserved", "blue"),
                ("bound", "teal") if row == 0 else ("binds next", "blue"),
            )[column]
            drawing.box(x + 14, 42 + 40 * row, 170, 32, f"pod {row}: {state}", fill)
        for number, line in enumerate(text.split("\n")):
            drawing.words(x + 14, 220 + 18 * number, line)
        if column:
            drawing.arrow((x - 15, 134), (x - 1, 134))
    drawing.words(
        10,
        292,
        "Until step 4 the controller may withdraw the plan: the reservation of the first pod goes before any other.",
    )
    drawing.words(
        10,
        312,
        "From step 4 on the other pods have their GPUs for certain. If a component dies, the next one reads the",
    )
    drawing.words(10, 332, "reservations from the API server and goes on.")
    return drawing.svg()


PICTURES = {"cluster": screenshot, "pod": pod, "sharing": sharing, "gang": gang, "growth": growth}
