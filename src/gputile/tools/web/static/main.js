// Puts the page together: what is looked at, by which filters, and what was chosen stands in the address.

import { drawCapacity } from "./capacity.js";
import { chosen } from "./choice.js";
import { Colours } from "./colours.js";
import { byId, element, fillSelect, nameElement } from "./elements.js";
import { Live } from "./live.js";
import { Model, amountText, groupsOf, podKey, totalsOf } from "./model.js";
import { nodePanel, plainPodPanel, podPanel } from "./panel.js";
import { drawPending } from "./pending.js";
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
let asked = 0; // the number of the latest question about a pod, so that a late answer to another is left out
let planned = false;
let restyle = true;

const grid = new TileGrid(byId("scroll"), byId("rows"), seen, open);
const given = byId("gputile-data");
const live = new Live({ state: onState, change: onChange, status: onStatus, lost: onLost, connected: onConnected });

const usageWatch = new UsageWatch(nodesLookedAt, (names) => live.usage(names), onUsage);

function onState(state) {
  seen.model.load(state);
  byId("cluster").replaceChildren(nameElement(state.cluster.replace(/^https?:\/\//, "")));
  document.title = `gputile ${state.cluster.replace(/^https?:\/\//, "")}`;
  byId("logout").hidden = !state.login;
  byId("partial").hidden = !state.partial;
  onStatus(state.status);
  restyle = true;
  drawNow();
  lookAtUse();
}

function onChange(difference) {
  performance.mark("gputile-change");
  seen.model.apply(difference);
  drawSoon();
}

// What is looked at is another: ask of it now.
function lookAtUse() {
  if (!given) usageWatch.soon();
}

function nodesLookedAt() {
  const names = address.view === "tiles" ? grid.inSight() : [];
  if (address.node && seen.model.nodes.has(address.node)) names.push(address.node);
  if (address.pod) askPodUse(address.pod, asked);
  return names;
}

function onUsage(answer, names) {
  seen.model.measured(names, answer);
  byId("usage-trouble").hidden = !answer.trouble;
  byId("usage-trouble").textContent = answer.trouble ? `What pods use is not known; blocks show what is booked. ${answer.trouble}` : "";
  if (address.node) fillUse(byId("panel"), seen.model.usage.get(address.node));
  drawSoon();
}

async function askPodUse(key, question) {
  if (!byId("pod-use")) return;
  try {
    const answer = await live.podUsage(key);
    if (question === asked) byId("pod-use")?.replaceChildren(...podUse(answer, seen.now()));
  } catch (error) {
    if (question === asked) byId("pod-use")?.replaceChildren(element("p", { class: "hint" }, nameElement(error.message)));
  }
}

function onStatus(status) {
  const trouble = byId("trouble");
  trouble.hidden = !status.trouble;
  trouble.textContent = status.trouble ? `The cluster does not answer since ${new Date(status.since * 1000).toLocaleTimeString()}; this is what it said last. ${status.trouble}` : "";
  setLive(status.trouble ? "stale" : "live");
}

function onConnected() {
  if (!byId("trouble").dataset.lost) return;
  delete byId("trouble").dataset.lost;
  byId("trouble").hidden = true;
  setLive("live");
}

function onLost(text) {
  byId("trouble").dataset.lost = "yes";
  byId("trouble").hidden = false;
  byId("trouble").textContent = text;
  setLive("stale");
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
  const groups = groupsOf(nodes, seen.colours.by);
  seen.colours.learn(groups);
  drawSummary(totals);
  fillSelect(byId("model"), [...totals.models].sort(), "all");
  fillSelect(byId("mode"), [...totals.modes].sort(), "all");
  fillSelect(byId("namespace"), [...totals.namespaces.keys()].sort(), "all");
  byId("pending-count").textContent = seen.model.pending.size ? `${seen.model.pending.size}` : "";
  const found = chosen(nodes, seen.wanted);
  const view = address.view;
  if (view === "tiles") {
    drawLegend(groups);
    grid.show(found, restyle);
    restyle = false;
    byId("nothing").hidden = found.length > 0;
    byId("nothing").textContent = nodes.length ? "No node is like that: the search and the filters leave none." : "The cluster has no node with GPUs.";
  } else if (view === "pending") {
    const words = seen.wanted.search.toLowerCase();
    drawPending(byId("view-pending"), [...seen.model.pending.values()].filter((pod) => podKey(pod).toLowerCase().includes(words) && (!seen.wanted.namespace || pod.namespace === seen.wanted.namespace)), open, seen.now());
  } else if (view === "capacity") {
    drawCapacity(byId("view-capacity"), found, seen.wanted.model);
  }
  if (address.node) drawNodePanel();
  document.documentElement.dataset.drawn = `${seen.model.nodes.size}`;
  performance.mark("gputile-drawn");
}

function drawSummary(totals) {
  const facts = [
    ["GPUs in use", `${totals.busy}`, `of ${totals.gpus}`, totals.gpus ? totals.busy / totals.gpus : 0],
    ["Memory booked", `${amountText(totals.booked)}`, `of ${amountText(totals.total)} GiB`, totals.total ? totals.booked / totals.total : 0],
    ["Pods on GPUs", `${totals.pods}`, totals.reserved ? `and ${totals.reserved} reserved` : `on ${totals.nodes} nodes`],
    ["Pending", `${seen.model.pending.size}`, seen.model.pending.size === 1 ? "pod asks for GPUs" : "pods ask for GPUs"],
    ["Unhealthy", `${totals.sick}`, `GPUs; ${totals.troubled} nodes with problems`],
  ];
  byId("summary").replaceChildren(...facts.map(([title, value, more, part]) => element("div", { class: `fact${title === "Unhealthy" && (totals.sick || totals.troubled) ? " bad" : ""}` },
    element("span", { class: "fact-title" }, title), element("strong", {}, value), element("span", { class: "fact-more" }, more),
    part === undefined ? null : element("div", { class: "meter-track", "aria-hidden": "true" }, element("div", { class: "meter", width: `${part * 100}%` })))));
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
    element("span", { class: "legend-sign" }, element("i", { class: "hatched" }), "reserved for a gang"),
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

// -- what is chosen

function open(choice) {
  address.pod = choice.pod ?? "";
  address.node = choice.node ?? "";
  writeAddress();
  drawPanel();
}

function close() {
  const before = address.node;
  open({});
  if (before && address.view === "tiles") grid.focusOn(before);
}

function drawPanel() {
  asked += 1;
  byId("panel").hidden = !address.pod && !address.node;
  document.body.classList.toggle("with-panel", !byId("panel").hidden);
  if (address.node) {
    grid.revealNode(address.node);
    drawNodePanel();
    lookAtUse();
  } else if (address.pod) drawPodPanel(address.pod, asked);
}

function fillPanel(kind, title, parts) {
  const focused = byId("panel").contains(document.activeElement);
  byId("panel").replaceChildren(
    element("div", { class: "panel-head" }, element("div", {}, element("small", {}, kind), element("h2", {}, nameElement(title))),
      element("button", { class: "quiet", id: "panel-close", "aria-label": "Close", onclick: close }, "✕")), ...parts);
  if (focused || !document.activeElement || document.activeElement === document.body) byId("panel-close").focus();
}

function drawNodePanel() {
  const node = seen.model.nodes.get(address.node);
  if (drawNodePanel.drawn === node && byId("panel").dataset.node === address.node && byId("panel").childElementCount) return;
  drawNodePanel.drawn = node;
  byId("panel").dataset.node = address.node;
  fillPanel("Node", address.node, node ? nodePanel(node, open, seen.now()) : [element("p", {}, "This node is not there (any more).")]);
  fillUse(byId("panel"), seen.model.usage.get(address.node));
}

async function drawPodPanel(key, question) {
  byId("panel").dataset.node = "";
  const pending = seen.model.pending.get(key);
  if (given) {
    fillPanel("Pod", key, pending ? plainPodPanel(pending) : [element("p", {}, "It has its place.")]);
    return;
  }
  fillPanel("Pod", key, [element("p", { class: "hint" }, "Asking ...")]);
  try {
    const answer = await live.pod(key);
    if (question !== asked) return;
    fillPanel("Pod", key, podPanel(key, answer, open, seen.now()));
    lookAtUse();
  } catch (error) {
    if (question === asked) fillPanel("Pod", key, [element("p", { class: "bad-box" }, nameElement(error.message))]);
  }
}

function show(view) {
  address.view = VIEWS.includes(view) ? view : "tiles";
  writeAddress();
  drawView();
}

function drawView() {
  for (const each of VIEWS) byId(`view-${each}`).hidden = each !== address.view;
  for (const tab of document.querySelectorAll("[data-view]")) tab.setAttribute("aria-selected", `${tab.dataset.view === address.view}`);
  byId("tools").hidden = address.view === "what-if";
  drawNow();
  lookAtUse();
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
  address.view = VIEWS.includes(parts.get("view")) ? parts.get("view") : "tiles";
  address.pod = parts.get("pod") ?? "";
  address.node = parts.get("node") ?? "";
  drawView();
  drawPanel();
}

// -- keys, light and dark

const KEYS = [["/", "search"], ["1 2 3 4", "tiles, pending, capacity, what if"], ["arrows", "from GPU to GPU; Page Up, Page Down, Home, End"], ["Enter", "open what is chosen"], ["Esc", "close, clear"], ["t", "light or dark"], ["?", "these keys"]];

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
  } else if (VIEWS[Number(event.key) - 1] && !byId(`view-${VIEWS[Number(event.key) - 1]}`).dataset.absent) show(VIEWS[Number(event.key) - 1]);
  else if (event.key === "t") turnTheme();
  else if (event.key === "?") showKeys();
  else if (event.key.startsWith("Arrow") && address.view === "tiles" && event.target === document.body) {
    grid.moveTo(grid.nodes.length ? grid.offsets.at(grid.scroll.scrollTop) : 0, 0, 1);
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
    // a page in a file may not keep anything
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
    for (const each of ["what-if"]) {
      byId(`view-${each}`).dataset.absent = "yes";
      document.querySelector(`[data-view="${each}"]`).hidden = true;
    }
    onState(JSON.parse(given.textContent));
    setLive("file");
  } else {
    new WhatIf(byId("view-what-if"), (manifest) => live.whatIf(manifest), (ghosts) => {
      seen.model.ghosts = ghosts;
      restyle = true;
    });
    setLive("stale");
    live.start();
    byId("scroll").addEventListener("scroll", lookAtUse, { passive: true });
  }
  readAddress();
}

begin();
