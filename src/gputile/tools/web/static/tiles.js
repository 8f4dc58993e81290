// The tiles: a grid of rows. Only the rows in sight are in the document.

import { isMeant, narrows } from "./choice.js";
import { element, nameElement } from "./elements.js";
import { RowOffsets, frameOf, tileWidth } from "./layout.js";
import { amountText, badgesOf, factsOf, podKey, podsOnInstances } from "./model.js";
import { useText, useTextOn, usedOn, usedPart } from "./usage.js";

const CELL = "[data-gpu], [data-node]"; // elements that keys can focus: tiles, and the names of nodes on their left
const NAME = -1; // stands for a node's name instead of a GPU's index
const BEYOND = 400; // rows up to this many pixels outside of the visible part are drawn too

export class TileGrid {
  // `seen` has what the grid is drawn from: model, colours, wanted, now(). `open` is called with the chosen pod or node.
  constructor(scroll, rows, seen, open) {
    this.scroll = scroll;
    this.rows = rows;
    this.seen = seen;
    this.open = open;
    this.nodes = [];
    this.shown = new Map(); // node name -> { row, node, key }
    this.style = 0;
    this.cursor = { node: "", gpu: NAME };
    this.column = 0; // the column to which ArrowUp and ArrowDown return after rows with fewer GPUs
    scroll.addEventListener("scroll", () => this.draw(), { passive: true });
    rows.addEventListener("keydown", (event) => this.onKey(event));
    rows.addEventListener("focusin", (event) => this.onFocus(event));
    rows.addEventListener("click", (event) => this.onClick(event));
  }

  // Show these nodes. `restyled` states that all rows must be drawn again.
  show(nodes, restyled) {
    this.nodes = nodes;
    if (restyled) this.style += 1;
    this.frame = frameOf(this.scroll.clientWidth, nodes);
    this.offsets = new RowOffsets(nodes, this.frame);
    this.rows.style.height = `${this.offsets.height}px`;
    this.rows.setAttribute("aria-rowcount", nodes.length);
    this.draw();
  }

  draw() {
    if (!this.offsets) return;
    const top = this.scroll.scrollTop - BEYOND;
    const bottom = this.scroll.scrollTop + this.scroll.clientHeight + BEYOND;
    const first = this.nodes.length ? this.offsets.at(Math.max(0, top)) : 0;
    const wanted = new Map();
    for (let i = first; i < this.nodes.length && this.offsets.tops[i] < bottom; i += 1) wanted.set(this.nodes[i].name, i);
    const focused = document.activeElement?.closest?.(CELL);
    const focusAt = focused && this.rows.contains(focused) ? { node: focused.closest("[data-row]").dataset.row, gpu: focused.dataset.gpu } : null;
    for (const [name, { row }] of this.shown) {
      if (!wanted.has(name)) {
        row.remove();
        this.shown.delete(name);
      }
    }
    let before = null;
    const key = `${this.style} ${this.frame.scale} ${this.frame.room}`;
    for (const [name, number] of wanted) {
      const node = this.nodes[number];
      const ghosts = this.seen.model.ghosts.get(name);
      const usage = this.seen.model.usage.get(name);
      let current = this.shown.get(name);
      if (!current || current.node !== node || current.key !== key || current.ghosts !== ghosts || current.usage !== usage) {
        const row = this.rowElement(node, ghosts ?? [], usage);
        if (current) current.row.replaceWith(row);
        current = { row, node, key, ghosts, usage };
        this.shown.set(name, current);
      }
      current.row.style.top = `${this.offsets.tops[number]}px`;
      current.row.style.height = `${this.offsets.tops[number + 1] - this.offsets.tops[number]}px`;
      current.row.setAttribute("aria-rowindex", number + 1);
      const follows = before ? before.nextSibling : this.rows.firstChild;
      if (follows !== current.row) this.rows.insertBefore(current.row, follows);
      before = current.row;
    }
    if (focusAt && !this.rows.contains(document.activeElement)) this.focusOn(focusAt.node, focusAt.gpu);
  }

  rowElement(node, ghosts, usage) {
    const { wanted } = this.seen;
    const facts = factsOf(node);
    const dims = narrows(wanted, node);
    const tiles = (node.gpus ?? []).map((gpu) => this.tileElement(node, gpu, facts, dims, ghosts, usage));
    const unplaced = (node.pods ?? []).filter((pod) => !pod.shares && !pod.instances);
    const row = element("div", { class: `row${node.silent ? " silent" : ""}${node.serves ? "" : " closed"}`, role: "row", "data-row": node.name });
    row.append(
      element("div", { class: "node", role: "rowheader" },
        element("button", { class: "node-name", "data-node": node.name, tabindex: this.isCursor(node, null) ? 0 : -1, title: node.name }, nameElement(node.name)),
        element("div", { class: "node-facts" }, element("span", { title: factsText(node, facts) }, factsText(node, facts)), badgesOf(node).map(({ kind, text, title }) => element("span", { class: `badge ${kind}`, title }, text)))),
      element("div", { class: "tiles" }, tiles, (node.instances ?? []).map((each) => instancesElement(node, each)), unplaced.length ? unplacedElement(unplaced) : null),
    );
    if (!tiles.length && !node.instances && !unplaced.length) row.lastChild.append(element("span", { class: "none" }, node.problems?.[0] ?? "no GPUs"));
    return row;
  }

  tileElement(node, gpu, facts, dims, ghosts, usage) {
    const { colours, wanted, now } = this.seen;
    const onGpu = facts.on.get(gpu.index) ?? [];
    const planned = ghosts.flatMap((pod) => pod.shares.filter(([index]) => index === gpu.index).map(([, mib, percent]) => ({ pod, mib, percent })));
    const sick = gpu.healthy === false;
    const all = [...onGpu, ...planned];
    const sum = all.reduce((total, { mib }) => total + mib, 0);
    const whole = Math.max(gpu.total, sum) || 1;
    const bar = element("div", { class: "bar" });
    const compute = element("div", { class: "compute" });
    for (const { pod, mib, percent } of all) {
      const dim = dims && !isMeant(pod, wanted);
      const kinds = ["block", pod.reserved && "reserved", pod.ghost && "ghost", dim && "dim"].filter(Boolean).join(" ");
      const part = `${(mib / whole) * 100}%`;
      const use = pod.ghost ? null : usage?.pods?.[podKey(pod)];
      const usedMib = usedOn(use, gpu.index);
      const used = usedPart(usedMib, mib);
      const colour = colours.of(pod, gpu, now(), used);
      const uses = pod.shares?.length > 1 ? useTextOn(use, gpu.index) : useText(use && [usedMib, use[1]]);
      const label = nameElement(pod.name, { class: "label" });
      const description = `${podKey(pod)}: ${amountText(mib)} GiB${percent && !pod.whole ? `, ${percent} % of compute` : ""}${pod.reserved ? ", reserved" : ""}${pod.ghost ? ", what if" : ""}${uses ? `, ${uses}` : ""}`;
      bar.append(element("button", { class: kinds, width: part, hue: colour.hue, tabindex: -1, title: description, "aria-label": description, "data-pod": podKey(pod), "data-ghost": pod.ghost },
        element("span", { class: "letter", "aria-hidden": "true" }, colour.letter), label,
        used === null ? null : element("span", { class: "used", width: `${used * 100}%`, "aria-hidden": "true" })));
      if (percent && !pod.whole) compute.append(element("span", { class: dim ? "dim" : "", width: `${Math.min(100, percent)}%`, hue: colour.hue }));
    }
    if (sum < gpu.total) bar.append(element("div", { class: `free${sick ? " sick" : ""}`, "aria-hidden": "true" }));
    const amounts = node.replicas ? `${Math.max(onGpu.length, gpu.pods ?? 0)}/${node.replicas} time slices` : `${amountText(gpu.booked ?? 0)}/${amountText(gpu.total)} GiB`;
    const width = tileWidth(gpu, this.frame);
    const short = width >= 110 ? amounts : width >= 84 ? amounts.replace(/ .*/, "") : `${Math.round((gpu.booked ?? 0) / 1024)}/${Math.round(gpu.total / 1024)}`;
    const bound = onGpu.reduce((total, { pod, mib }) => (pod.reserved ? total : total + mib), 0); // a reservation may overlap pods that are being preempted
    const state = sick ? "✕ unhealthy" : bound > gpu.total ? "! overbooked" : "";
    const description = `GPU ${gpu.index}, ${gpu.model || "model unknown"}, ${amounts} booked${gpu.percent ? `, ${gpu.percent} % of compute` : ""}, ${onGpu.length} pods${state ? `, ${state.slice(2)}` : ""}`;
    return element("div", { class: `tile${sick ? " sick" : ""}`, role: "gridcell", tabindex: this.isCursor(node, gpu) ? 0 : -1, width: `${width}px`, "data-gpu": gpu.index, "data-of": node.name, "aria-label": description },
      element("div", { class: "tile-head", title: `${gpu.model ?? ""} ${amounts}${state ? ` ${state}` : ""}` }, element("b", {}, `${gpu.index}`), state ? element("em", {}, state) : null, element("span", {}, short)),
      bar, compute);
  }

  // The names of the nodes whose rows are visible.
  inSight() {
    const top = this.scroll.scrollTop;
    const bottom = top + this.scroll.clientHeight;
    return [...this.shown.values()].filter(({ row }) => row.offsetTop < bottom && row.offsetTop + row.offsetHeight > top).map(({ node }) => node.name);
  }

  // Whether the focus of keys is on this GPU of a node, or on the node's name if `gpu` is null.
  isCursor(node, gpu) {
    if (this.cursor.node) return node.name === this.cursor.node && (gpu?.index ?? NAME) === this.cursor.gpu;
    const first = this.nodes.find((each) => each.gpus?.length) ?? this.nodes[0];
    return node === first && (gpu ?? undefined) === node.gpus?.[0];
  }

  onClick(event) {
    const pod = event.target.closest("[data-pod]");
    const node = event.target.closest("[data-node]");
    const tile = event.target.closest("[data-gpu]");
    if (pod && pod.dataset.ghost === undefined) this.open({ pod: pod.dataset.pod });
    else if (node) this.open({ node: node.dataset.node });
    else if (tile) this.open({ node: tile.dataset.of });
  }

  onFocus(event) {
    const cell = event.target.closest(CELL);
    if (!cell) return;
    for (const other of this.rows.querySelectorAll(CELL)) other.tabIndex = -1;
    cell.tabIndex = 0;
    this.cursor = { node: cell.dataset.of ?? cell.dataset.node, gpu: Number(cell.dataset.gpu ?? NAME) };
    const node = this.nodes.find(({ name }) => name === this.cursor.node);
    if (node?.gpus?.length) this.column = node.gpus.findIndex(({ index }) => index === this.cursor.gpu);
  }

  onKey(event) {
    const cell = event.target.closest(CELL);
    if (!cell) return;
    const name = cell.dataset.of ?? cell.dataset.node;
    const number = this.nodes.findIndex((node) => node.name === name);
    const gpus = this.nodes[number]?.gpus ?? [];
    const page = Math.max(1, Math.floor(this.scroll.clientHeight / 80));
    const moves = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -number, End: this.nodes.length - 1 - number };
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const at = gpus.findIndex((gpu) => gpu.index === Number(cell.dataset.gpu ?? NAME));
      const next = at + (event.key === "ArrowLeft" ? -1 : 1);
      if (next < gpus.length) this.focusOn(name, gpus[next]?.index);
    } else if (event.key in moves) {
      this.moveTo(number + moves[event.key], this.column);
    } else if ((event.key === "Enter" || event.key === " ") && event.target === cell && cell.dataset.of) {
      this.open({ node: name });
    } else return;
    event.preventDefault();
  }

  // Focus the tile of row `number` in this column, or the last tile of the row, or the name of a node without GPUs.
  moveTo(number, column) {
    const at = Math.min(Math.max(number, 0), this.nodes.length - 1);
    const node = this.nodes[at];
    if (!node) return;
    this.reveal(at);
    this.focusOn(node.name, node.gpus?.[Math.min(column, node.gpus.length - 1)]?.index);
  }

  reveal(number) {
    const [top, bottom] = [this.offsets.tops[number], this.offsets.tops[number + 1]];
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    else if (bottom > this.scroll.scrollTop + this.scroll.clientHeight) this.scroll.scrollTop = bottom - this.scroll.clientHeight;
    this.draw();
  }

  revealNode(name) {
    const number = this.nodes.findIndex((node) => node.name === name);
    if (number >= 0) this.reveal(number);
  }

  focusOn(name, index = NAME) {
    const row = this.shown.get(name)?.row;
    row?.querySelector(Number(index) === NAME ? "[data-node]" : `[data-gpu="${Number(index)}"]`)?.focus({ preventScroll: true });
  }
}

function factsText(node, facts) {
  const models = [...facts.models].map((model) => model.replace(/^(NVIDIA|Tesla)\s+/i, "")).join(", ");
  const split = (node.instances ?? []).map((each) => `${each.total} × MIG ${each.profile}`);
  const whole = facts.gpus ? [`${facts.gpus} × ${models || "GPU"}`] : split.length ? [] : ["no GPUs"];
  return [node.mode || "mode unknown", ...whole, ...split].join(" · ");
}

function instancesElement(node, { profile, total, booked = 0 }) {
  const text = `MIG ${profile}: ${Math.max(0, total - booked)} of ${total} free`;
  return element("div", { class: "instances", "data-profile": profile }, element("b", {}, text), " ",
    podsOnInstances(node, profile).map(({ pod, count }) => element("button", { class: "chip", "data-pod": podKey(pod), title: podKey(pod), tabindex: -1 }, nameElement(pod.name), count > 1 ? ` × ${count}` : "")));
}

function unplacedElement(pods) {
  return element("div", { class: "unplaced" }, "on unknown GPUs: ",
    pods.map((pod) => element("button", { class: "chip", "data-pod": podKey(pod), title: pod.problem, tabindex: -1 }, nameElement(podKey(pod)))));
}
