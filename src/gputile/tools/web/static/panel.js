// The contents of the panel for one pod or one node.

import { element, nameElement } from "./elements.js";
import { agoText, amountText, factsOf, podKey, podsOnInstances } from "./model.js";

export function nodePanel(node, open, now) {
  const facts = factsOf(node);
  const parts = [
    factList([
      ["Mode", node.mode || "unknown"],
      ["Accepts", node.serves === "memory" ? "shares of GPUs" : node.serves === "gpus" ? "whole GPUs" : node.serves === "instances" ? "MIG instances" : "no pods now"],
      ["Memory unit", node.unit ? `${node.unit} MiB` : "unknown"],
      ["Booked", `${amountText(facts.booked)} of ${amountText(facts.total)} GiB`],
      ["Taints", (node.taints ?? []).join(", ") || "none"],
      ["Scheduling", node.cordoned ? "off (cordoned)" : "on"],
    ]),
  ];
  if (node.silent || node.problems) parts.push(element("div", { class: "bad-box" }, element("h3", {}, "Problems"), element("ul", {}, (node.silent ? ["its agent is silent"] : []).concat(node.problems ?? []).map((text) => element("li", {}, nameElement(text))))));
  for (const gpu of node.gpus ?? []) {
    const onGpu = facts.on.get(gpu.index) ?? [];
    parts.push(element("h3", {}, `GPU ${gpu.index} `, element("small", {}, nameElement(gpu.model ?? ""), ` ${amountText(gpu.booked ?? 0)}/${amountText(gpu.total)} GiB booked`, element("span", { "data-use-gpu": gpu.index }), `${gpu.percent ? `, ${gpu.percent} % of compute` : ""}${gpu.healthy === false ? ", ✕ unhealthy" : ""}`)));
    parts.push(onGpu.length ? element("ul", { class: "pods" }, onGpu.map(({ pod, mib, percent }) => element("li", {},
      element("button", { class: "link", onclick: () => open({ pod: podKey(pod) }) }, nameElement(podKey(pod))),
      element("span", {}, ` ${amountText(mib)} GiB${percent && !pod.whole ? `, ${percent} %` : ""}${pod.reserved ? ", reserved" : ""} ${agoText(pod.created, now)}`),
      element("span", { "data-use-of": podKey(pod), "data-use-on": pod.shares.length > 1 ? gpu.index : undefined })))) : element("p", { class: "hint" }, "free"));
  }
  for (const { profile, total, booked = 0 } of node.instances ?? []) {
    const onInstances = podsOnInstances(node, profile);
    parts.push(element("h3", {}, `MIG ${profile} `, element("small", {}, `${booked} of ${total} instances booked`)));
    parts.push(onInstances.length ? element("ul", { class: "pods" }, onInstances.map(({ pod, count }) => element("li", {},
      element("button", { class: "link", onclick: () => open({ pod: podKey(pod) }) }, nameElement(podKey(pod))),
      element("span", {}, `${count > 1 ? ` ${count} instances` : ""} ${agoText(pod.created, now)}`),
      element("span", { "data-use-of": podKey(pod) })))) : element("p", { class: "hint" }, "free"));
  }
  const unplaced = (node.pods ?? []).filter((pod) => !pod.shares && !pod.instances);
  if (unplaced.length) parts.push(element("h3", {}, "On unknown GPUs"), element("ul", { class: "pods" }, unplaced.map((pod) => element("li", {},
    element("button", { class: "link", onclick: () => open({ pod: podKey(pod) }) }, nameElement(podKey(pod))),
    element("span", {}, " ", nameElement(pod.problem ?? ""))))));
  parts.push(element("p", { class: "hint", "data-use-problem": true }));
  return parts;
}

export function podPanel(key, answer, open, now) {
  const { explanation } = answer;
  const created = Math.floor(Date.parse(answer.created) / 1000);
  const parts = [
    element("p", { class: `state ${explanation.state.toLowerCase()}` }, explanation.state),
    element("p", {}, nameElement(explanation.text)),
    factList([
      ["Node", explanation.node ? element("button", { class: "link", onclick: () => open({ node: explanation.node }) }, nameElement(explanation.node)) : "none yet"],
      ["Age", agoText(created, now)],
    ]),
  ];
  if (explanation.node) parts.push(element("h3", {}, "Use"), element("div", { id: "pod-use" }, element("p", { class: "hint" }, "Loading ...")));
  if (explanation.changes.length) {
    parts.push(element("h3", {}, "What would help"), element("ul", {}, explanation.changes.map((change) => element("li", {}, nameElement(change.change), change.nodes.length ? [" (", nameElement(change.nodes.join(", ")), ")"] : ""))));
  }
  if (explanation.nodes.length) {
    parts.push(element("h3", {}, `Verdicts of the nodes, the closest first (${explanation.nodes.length})`));
    parts.push(...explanation.nodes.map((node) => verdict(node, open)));
  }
  parts.push(element("h3", {}, "Events"));
  if (answer.eventsUnknown) parts.push(element("p", { class: "hint" }, nameElement(answer.eventsUnknown)));
  else if (!answer.events.length) parts.push(element("p", { class: "hint" }, "none (any more)"));
  else parts.push(element("ul", { class: "events" }, answer.events.map((event) => element("li", { class: event.type === "Warning" ? "warning" : "" },
    element("b", {}, nameElement(event.reason)), element("time", {}, ` ${agoText(Math.floor(Date.parse(event.when) / 1000), now)} ago`), element("p", {}, nameElement(event.message))))));
  return parts;
}

export function plainPodPanel(pod) {
  return [factList([["Asks", pod.asks], ["Gang", pod.gang || "none"]]), pod.waits ? element("p", {}, nameElement(pod.waits)) : ""];
}

// The panel of a pod if the page is a file without a server: the pod's node and GPUs.
export function placedPodPanel(nodes, key, open) {
  for (const node of nodes) {
    const pod = (node.pods ?? []).find((each) => podKey(each) === key);
    if (!pod) continue;
    const shares = (pod.shares ?? []).map(([index, mib, percent]) => element("li", {}, `GPU ${index}: ${pod.whole ? "whole" : `${amountText(mib)} GiB`}${percent && !pod.whole ? `, ${percent} % of compute` : ""}`));
    return [
      element("p", {}, pod.reserved ? "Its reservation is on " : "It is on ", element("button", { class: "link", onclick: () => open({ node: node.name }) }, nameElement(node.name))),
      element("ul", {}, shares),
    ];
  }
  return [element("p", { class: "hint" }, "This pod does not exist.")];
}

function verdict(node, open) {
  const why = [node.inTree, node.gpu].filter(Boolean).join("; ") || "it fits";
  const gpus = node.cards.map((gpu) => element("tr", {},
    element("td", {}, `${gpu.index}`),
    element("td", { class: "number" }, `${amountText(gpu.freeMib)}/${amountText(gpu.totalMib)}`),
    element("td", { class: "number" }, `${gpu.freePercent} %`),
    element("td", {}, nameElement(gpu.lacks || (node.fits ? "" : "this GPU would do")))));
  return element("details", { class: node.fits ? "verdict fits" : "verdict" },
    element("summary", {}, nameElement(node.name, { class: "verdict-name" }), element("span", {}, nameElement(why))),
    element("button", { class: "link", onclick: () => open({ node: node.name }) }, "show this node"),
    gpus.length ? element("table", {}, element("thead", {}, element("tr", {}, ["GPU", "Free GiB", "Compute", "Why not"].map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, gpus)) : "");
}

function factList(pairs) {
  return element("dl", {}, pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, typeof value === "string" ? nameElement(value) : value)]));
}
