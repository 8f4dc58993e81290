// Assembles the page. The address contains the open view, and the chosen pod or node.

import { drawCapacity } from "./capacity.js";
import { chosen } from "./choice.js";
import { Colours } from "./colours.js";
import { byId, element, fillSelect, nameElement } from "./elements.js";
import { Live } from "./live.js";
import { Model, amountText, groupsOf, totalsOf } from "./model.js";
import { nodePanel, placedPodPanel, plainPodPanel, podPanel } from "./panel.js";
import { fillFrame, isMarked } from "./panel_frame.js";
import { drawPending, focusOnPending, waiting } from "./pending.js";
import { PodWatch } from "./pod_watch.js";
import { TileGrid } from "./tiles.js";
import { UsageWatch, fillUse, podUse } from "./usage.js";
import { WhatIf } from "./what_if.js";

const VIEWS = ["tiles", "pending", "capacity", "what-if"];
const MOST_LEGEND = 24;
const seen = {
  model: new Model(),
  colours: new Colours(),
  wanted: { search: "", model: "", mode: "", namespace: "", order: "name" },
  now: () => Math.floor(Date.now() / 1000),
};
const address = { view: "tiles", pod: "", node: "" };
const connection = { open: false, lost: "", status: {} };
let planned = false;
let restyle = true;

const grid = new TileGrid(byId("scroll"), byId("rows"), seen, open);
const given = byId("gputile-data");
const views = given ? VIEWS.filter((view) => view !== "what-if") : VIEWS; // a page in a file has no server
const live = new Live({ state: onState, change: onChange, status: onStatus, lost: onLost, connected: onConnected, rested: onRested });

const usageWatch = new UsageWatch(nodesInSight, (names) => live.usage(names), onUsage);
const podWatch = new PodWatch((key, wanted) => live.pod(key, wanted), onPod);

function onState(state) {
  const wasLoaded = seen.model.whole;
  seen.model.load(state);
  byId("cluster").replaceChildren(nameElement(state.cluster.replace(/^https?:\/\//, "")));
  document.title = `gputile ${state.cluster.replace(/^https?:\/\//, "")}`;
  byId("logout").hidden = !state.login;
  byId("partial").hidden = !state.partial;
  onStatus(state.status);
  restyle = true;
  drawNow();
  pollUsage();
  if (wasLoaded) podWatch.changed();
}

function onChange(difference) {
  performance.mark("gputile-change");
  if (seen.model.apply(difference, address.pod)) podWatch.changed();
  drawSoon();
}

// The user has opened another node or pod, or scrolled: request the use of what is in sight now.
function pollUsage() {
  if (!given) usageWatch.soon();
}

function nodesInSight() {
  const names = address.view === "tiles" ? grid.inSight() : [];
  if (address.node && seen.model.nodes.has(address.node)) names.push(address.node);
  if (address.pod) askPodUse(address.pod);
  return names;
}

function onUsage(answer, names) {
  seen.model.measured(names, answer);
  byId("usage-trouble").hidden = !answer.trouble;
  byId("usage-trouble").textContent = answer.trouble ? `The use of pods is unknown. Blocks show booked amounts. ${answer.trouble}` : "";
  if (address.node) fillUse(byId("panel"), seen.model.usage.get(address.node));
  drawSoon();
}

async function askPodUse(key) {
  if (!byId("pod-use")) return;
  try {
    const answer = await live.podUsage(key);
    if (key === address.pod) byId("pod-use")?.replaceChildren(...podUse(answer, seen.now()));
  } catch (error) {
    if (key === address.pod) byId("pod-use")?.replaceChildren(element("p", { class: "hint" }, nameElement(error.message)));
  }
}

// The browser may lose the server, and the server may lose the cluster. Both are tracked separately.
function onStatus(status) {
  connection.status = status;
  drawConnection();
}

function onConnected() {
  connection.open = true;
  connection.lost = "";
  drawConnection();
}

function onRested() {
  connection.open = false;
  drawConnection();
}

function onLost(text) {
  connection.open = false;
  connection.lost = text;
  drawConnection();
}

function drawConnection() {
  const { open: connected, lost, status } = connection;
  const away = status.trouble ? `The cluster has not answered since ${new Date(status.since * 1000).toLocaleTimeString()}. The page shows its last known state. ${status.trouble}` : "";
  byId("trouble").hidden = !lost && !away;
  byId("trouble").textContent = lost || away;
  setLive(connected && !lost && !away ? "live" : "stale");
}

function setLive(state) {
  byId("live").className = state === "live" ? "live on" : "live";
  byId("live").textContent = { live: "live", stale: "not live", file: "" }[state];
}

function drawSoon() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    drawNow();
  });
}

function drawNow() {
  if (!seen.model.loaded) return;
  const nodes = [...seen.model.nodes.values()];
  const totals = totalsOf(nodes);
  // Colours for namespaces tell nothing if all pods are in one namespace.
  if (!seen.colours.chosen && seen.model.whole) {
    const by = totals.namespaces.size === 1 ? "workload" : "namespace";
    restyle ||= by !== seen.colours.by;
    byId("colour").value = seen.colours.by = by;
  }
  const groups = groupsOf(nodes, seen.colours.by);
  seen.colours.learn(groups);
  drawSummary(totals);
  fillSelect(byId("model"), [...totals.models].sort(), "all");
  fillSelect(byId("mode"), [...totals.modes].sort(), "all");
  fillSelect(byId("namespace"), [...new Set([...totals.namespaces.keys(), ...[...seen.model.pending.values()].map((pod) => pod.namespace)])].sort(), "all");
  byId("pending-count").textContent = seen.model.pending.size ? `${seen.model.pending.size}` : "";
  const found = chosen(nodes, seen.wanted);
  const { whole } = seen.model;
  const view = address.view;
  if (view === "tiles") {
    drawLegend(groups);
    grid.show(found, restyle);
    restyle = false;
    byId("nothing").hidden = found.length > 0;
    byId("nothing").textContent = nodes.length ? "No node matches the search and the filters." : "The cluster has no node with GPUs.";
  } else if (whole && view === "pending") {
    const pending = [...seen.model.pending.values()];
    drawPending(byId("view-pending"), waiting(pending, seen.wanted), pending.length, open, seen.now());
  } else if (whole && view === "capacity") {
    drawCapacity(byId("view-capacity"), found, seen.wanted.model);
  }
  if (address.node) drawNodePanel();
  if (whole) document.documentElement.dataset.drawn = `${nodes.length}`;
  performance.mark("gputile-drawn");
}

function drawSummary(totals) {
  const facts = [
    ["GPUs in use", `${totals.busy}`, `of ${totals.gpus}`, totals.gpus ? totals.busy / totals.gpus : 0],
    ["Memory booked", `${amountText(totals.booked)}`, `of ${amountText(totals.total)} GiB`, totals.total ? totals.booked / totals.total : 0],
    ["Pods on GPUs", `${totals.pods}`, totals.reserved ? `and ${totals.reserved} reserved` : `on ${totals.nodesWithPods} ${totals.nodesWithPods === 1 ? "node" : "nodes"}`],
    ["Pending", `${seen.model.pending.size}`, seen.model.pending.size === 1 ? "pod asks for GPUs" : "pods ask for GPUs"],
    ["Unhealthy", `${totals.sick}`, `GPUs; ${totals.troubled} nodes with problems`],
  ];
  byId("summary").replaceChildren(...facts.map(([title, value, more, part]) => element("div", { class: `fact${title === "Unhealthy" && (totals.sick || totals.troubled) ? " bad" : ""}` },
    element("span", { class: "fact-title" }, title), element("strong", {}, seen.model.whole ? value : "…"), element("span", { class: "fact-more" }, seen.model.whole ? more : ""),
    part === undefined ? null : element("div", { class: "meter-track", "aria-hidden": "true" }, element("div", { class: "meter", width: `${seen.model.whole ? part * 100 : 0}%` })))));
}

function drawLegend(groups) {
  const entries = seen.colours.legend(groups);
  const by = seen.colours.by;
  const chips = entries.slice(0, MOST_LEGEND).map(({ hue, letter, name }) => element("button", {
    class: "legend-chip", hue, "aria-pressed": by === "namespace" ? `${seen.wanted.namespace === name}` : undefined,
    onclick: () => by === "namespace" && choose("namespace", seen.wanted.namespace === name ? "" : name),
  }, element("i", { "aria-hidden": "true" }, letter), nameElement(name)));
  const more = entries.length - MOST_LEGEND;
  byId("legend").replaceChildren(...chips, more > 0 ? element("span", { class: "hint" }, `and ${more} more`) : "",
    element("span", { class: "legend-sign" }, element("i", { class: "free" }), "free"),
    element("span", { class: "legend-sign" }, element("i", { class: "hatched" }), "reserved"),
    element("span", { class: "legend-sign" }, element("i", { class: "sick" }), "✕ unhealthy"),
    seen.model.usage.size ? element("span", { class: "legend-sign" }, element("i", { class: "used-sign" }), "used") : "",
    seen.model.ghosts.size ? element("span", { class: "legend-sign" }, element("i", { class: "ghost" }), "what if") : "");
}

function choose(name, value) {
  seen.wanted[name] = value;
  if (byId(name)) byId(name).value = value;
  restyle = true;
  drawNow();
}

// -- the chosen pod or node

function open(choice) {
  address.pod = choice.pod ?? "";
  address.node = choice.node ?? "";
  writeAddress();
  drawPanel();
}

function close() {
  const { node, pod } = address;
  open({});
  if (address.view === "tiles" && node) grid.focusOn(node);
  else if (address.view === "tiles") grid.focusOn(grid.cursor.node, grid.cursor.gpu);
  else if (address.view === "pending") focusOnPending(byId("view-pending"), pod);
}

function drawPanel() {
  podWatch.close();
  byId("panel").hidden = !address.pod && !address.node;
  if (byId("panel").hidden) byId("panel").dataset.title = "";
  document.body.classList.toggle("with-panel", !byId("panel").hidden);
  if (address.node) {
    grid.revealNode(address.node);
    drawNodePanel();
    pollUsage();
  } else if (address.pod) drawPodPanel(address.pod);
}

function fillPanel(kind, title, parts) {
  fillFrame(byId("panel"), { kind, title, close }, parts);
}

function drawNodePanel() {
  const node = seen.model.nodes.get(address.node);
  const shown = node ?? seen.model.whole;
  if (drawNodePanel.drawn === shown && byId("panel").dataset.node === address.node && byId("panel").childElementCount) return;
  drawNodePanel.drawn = shown;
  byId("panel").dataset.node = address.node;
  fillPanel("Node", address.node, node ? nodePanel(node, open, seen.now()) : [element("p", { class: "hint" }, shown ? "This node does not exist (any more)." : "Loading ...")]);
  fillUse(byId("panel"), seen.model.usage.get(address.node));
}

function drawPodPanel(key) {
  byId("panel").dataset.node = "";
  const pending = seen.model.pending.get(key);
  if (given) {
    fillPanel("Pod", key, pending ? plainPodPanel(pending) : placedPodPanel(seen.model.nodes.values(), key, open));
    return;
  }
  fillPanel("Pod", key, [element("p", { class: "hint" }, "Loading ...")]);
  podWatch.open(key);
}

function onPod(key, answer, error) {
  if (isMarked(byId("panel"))) return;
  const use = [...(byId("pod-use")?.childNodes ?? [])];
  fillPanel("Pod", key, answer ? podPanel(key, answer, open, seen.now()) : [element("p", { class: "bad-box" }, nameElement(error.message))]);
  if (use.length) byId("pod-use")?.replaceChildren(...use);
  else pollUsage();
}

function show(view) {
  address.view = views.includes(view) ? view : "tiles";
  writeAddress();
  drawView();
}

function drawView() {
  for (const each of VIEWS) byId(`view-${each}`).hidden = each !== address.view;
  for (const tab of document.querySelectorAll("[data-view]")) tab.setAttribute("aria-selected", `${tab.dataset.view === address.view}`);
  byId("tools").hidden = address.view === "what-if";
  drawNow();
  pollUsage();
}

// -- the address

function writeAddress() {
  const parts = new URLSearchParams();
  if (address.view !== "tiles") parts.set("view", address.view);
  for (const name of ["pod", "node"]) if (address[name]) parts.set(name, address[name]);
  const text = parts.toString();
  if (text !== location.hash.slice(1)) history.pushState(null, "", text ? `#${text}` : location.pathname);
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  address.view = views.includes(parts.get("view")) ? parts.get("view") : "tiles";
  address.pod = parts.get("pod") ?? "";
  address.node = parts.get("node") ?? "";
  drawView();
  drawPanel();
}

// -- keys, light and dark

const KEYS = [["/", "search"], ["1 2 3 4", "tiles, pending, capacity, what if"], ["arrows", "move between GPUs, and to the node's name on the left; also Page Up, Page Down, Home, End"], ["Enter", "open the chosen GPU, node or pod"], ["Esc", "close the panel, clear the search"], ["t", "light or dark"], ["?", "these keys"]];

function onKey(event) {
  const typing = event.target.matches?.("input, textarea, select");
  if (event.key === "Escape") {
    if (byId("keys").open) byId("keys").close();
    else if (typing && event.target === byId("search") && event.target.value) {
      event.target.value = "";
      choose("search", "");
    } else if (!byId("panel").hidden) close();
    else event.target.blur?.();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    byId("search").focus();
    event.preventDefault();
  } else if (views[Number(event.key) - 1]) show(views[Number(event.key) - 1]);
  else if (event.key === "t") turnTheme();
  else if (event.key === "?") showKeys();
  else if (event.key.startsWith("Arrow") && address.view === "tiles" && event.target === document.body) {
    grid.moveTo(grid.nodes.length ? grid.offsets.at(grid.scroll.scrollTop) : 0, 0);
    event.preventDefault();
  }
}

function showKeys() {
  byId("keys").replaceChildren(element("h2", {}, "Keys"), element("dl", {}, KEYS.flatMap(([key, what]) => [element("dt", {}, key), element("dd", {}, what)])),
    element("button", { class: "primary", onclick: () => byId("keys").close() }, "Close"));
  byId("keys").showModal();
}

function turnTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("gputile-theme", theme);
  } catch {
    // Browsers may refuse storage to a page in a file.
  }
}

function begin() {
  try {
    const theme = localStorage.getItem("gputile-theme");
    if (theme === "light" || theme === "dark") setTheme(theme);
  } catch {
    // as above
  }
  for (const tab of document.querySelectorAll("[data-view]")) tab.addEventListener("click", () => show(tab.dataset.view));
  for (const name of ["model", "mode", "namespace", "order"]) byId(name).addEventListener("change", (event) => choose(name, event.target.value));
  byId("search").addEventListener("input", (event) => choose("search", event.target.value));
  byId("colour").addEventListener("change", (event) => {
    seen.colours.by = event.target.value;
    seen.colours.chosen = true;
    restyle = true;
    drawNow();
  });
  byId("theme").addEventListener("click", turnTheme);
  byId("logout").addEventListener("click", async () => {
    await live.logOut();
    location.assign("/login");
  });
  byId("help").addEventListener("click", showKeys);
  document.addEventListener("keydown", onKey);
  window.addEventListener("popstate", readAddress);
  new ResizeObserver(() => drawSoon()).observe(byId("scroll"));
  if (given) {
    document.querySelector('[data-view="what-if"]').hidden = true;
    onState(JSON.parse(given.textContent));
    setLive("file");
  } else {
    new WhatIf(byId("view-what-if"), (manifest, nodes) => live.whatIf(manifest, nodes), (ghosts) => {
      seen.model.ghosts = ghosts;
      restyle = true;
    });
    setLive("stale");
    live.start();
    document.addEventListener("visibilitychange", () => live.onSight());
    byId("scroll").addEventListener("scroll", pollUsage, { passive: true });
  }
  readAddress();
}

begin();
