// The view "What if": the user pastes a manifest, the simulator places its pods, and the tiles show them.

import { element, nameElement } from "./elements.js";
import { amountText, podKey } from "./model.js";

// Merges pods without a node into one row if they have the same reason.
function together(pods) {
  const rows = [];
  for (const pod of pods) {
    const last = rows.at(-1);
    if (last && !pod.node && !last.pod.node && last.pod.reason === pod.reason) last.more += 1;
    else rows.push({ pod, more: 0 });
  }
  return rows;
}

const EXAMPLE = `apiVersion: apps/v1
kind: Deployment
metadata: {name: what-if}
spec:
  replicas: 2
  selector: {matchLabels: {app: what-if}}
  template:
    metadata: {labels: {app: what-if}}
    spec:
      containers:
      - name: main
        image: example
        resources: {limits: {aliyun.com/gpu-mem: "4"}}
`;

export class WhatIf {
  // `request` sends a manifest and descriptions of added nodes, and returns the answer. `shown` is called with the ghosts,
  // the simulated pods by node, that the tiles should show.
  constructor(place, request, shown) {
    this.shown = shown;
    this.request = request;
    this.text = element("textarea", { "aria-label": "Manifest", rows: 18, spellcheck: "false" });
    this.text.value = EXAMPLE;
    this.nodes = element("input", { type: "text", placeholder: "2x8xH100:cgpu", spellcheck: "false", autocomplete: "off" });
    this.button = element("button", { class: "primary", type: "submit" }, "Where would it go?");
    this.answer = element("div", { class: "answer", role: "status" });
    const clear = element("button", { type: "button", onclick: () => this.clear() }, "Clear");
    place.replaceChildren(element("div", { class: "columns" },
      element("form", { onsubmit: (event) => this.submit(event) },
        element("p", { class: "hint" }, "Paste manifests of pods, Deployments, Jobs or other workloads. The simulator places their pods with the code of the scheduler. Nothing is created in the cluster."),
        this.text, element("p", {}, element("label", {}, "Added nodes ", this.nodes), " COUNTxGPUSxMODEL[:MODE]"),
        element("p", {}, this.button, " ", clear)),
      this.answer));
  }

  async submit(event) {
    event.preventDefault();
    this.button.disabled = true;
    this.answer.replaceChildren(element("p", { class: "hint" }, "Deciding ..."));
    try {
      this.draw(await this.request(this.text.value, this.nodes.value.split(/[\s,]+/).filter(Boolean)));
    } catch (error) {
      this.answer.replaceChildren(element("p", { class: "bad-box" }, nameElement(`${error.message}`)));
    } finally {
      this.button.disabled = false;
    }
  }

  clear() {
    this.answer.replaceChildren();
    this.shown(new Map());
  }

  draw(found) {
    if (found.error) {
      this.answer.replaceChildren(element("pre", { class: "bad-box" }, nameElement(found.error)));
      this.shown(new Map());
      return;
    }
    const placed = found.pods.filter((pod) => pod.node);
    const ghosts = new Map();
    for (const pod of placed) {
      if (!pod.shares?.length) continue;
      if (!ghosts.has(pod.node)) ghosts.set(pod.node, []);
      ghosts.get(pod.node).push({ ...pod, ghost: true });
    }
    this.shown(ghosts);
    this.answer.replaceChildren(
      element("p", {}, element("b", {}, `${placed.length} of ${found.pods.length}`), " pods would be placed."),
      found.notes.length ? element("ul", {}, found.notes.map((text) => element("li", {}, nameElement(text)))) : "",
      element("table", { class: "stacked" }, element("thead", {}, element("tr", {}, ["Pod", "Node", "GPUs", "Why"].map((text) => element("th", { scope: "col" }, text)))),
        element("tbody", {}, together(found.pods).slice(0, 500).map(({ pod, more }) => element("tr", { class: pod.node ? "" : "refused" },
          element("th", { scope: "row" }, nameElement(podKey(pod)), more ? ` and ${more} more` : ""), element("td", { "data-of": "Node" }, nameElement(pod.node ?? "none")),
          element("td", { "data-of": "GPUs" }, (pod.shares ?? []).map(([index, mib]) => (pod.whole ? `${index}` : `${index}: ${amountText(mib)} GiB`)).join(", ")),
          element("td", { "data-of": "Why" }, pod.reason ? nameElement(pod.reason) : ""))))),
      placed.length ? element("p", { class: "hint" }, "The view Tiles shows these pods with dashed outlines.") : "");
  }
}
