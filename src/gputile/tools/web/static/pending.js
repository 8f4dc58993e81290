// The view of pods that request GPUs and have no node.

import { hasAll, wordsIn } from "./choice.js";
import { element, nameElement } from "./elements.js";
import { agoText, podKey } from "./model.js";

const MOST = 500;

// The pods that match the search and the filters.
export function waiting(pods, wanted) {
  const words = wordsIn(wanted.search);
  return pods.filter((pod) => (!wanted.namespace || pod.namespace === wanted.namespace)
    && hasAll([podKey(pod), pod.gang ?? "", pod.asks].join("\n").toLowerCase(), words));
}

export function focusOnPending(place, key) {
  [...place.querySelectorAll(".link")].find((link) => link.textContent === key)?.focus();
}

// Groups of pods of one workload with equal requests and equal reasons to wait, the oldest first.
function grouped(pods) {
  const groups = new Map();
  for (const pod of [...pods].sort((a, b) => (a.created || Infinity) - (b.created || Infinity) || (podKey(a) < podKey(b) ? -1 : 1))) {
    const key = [pod.namespace, pod.workload || pod.name, pod.asks, pod.gang, pod.waits].join("\n");
    if (groups.has(key)) groups.get(key).push(pod);
    else groups.set(key, [pod]);
  }
  return [...groups.values()];
}

// `all` is the number of all pending pods; `pods` are those that match the search.
export function drawPending(place, pods, all, open, now) {
  if (!pods.length) {
    place.replaceChildren(element("p", { class: "nothing" }, all ? `None of the ${all} pending pods matches the search and the filters.` : "No pod waits for a GPU."));
    return;
  }
  const groups = grouped(pods);
  const rows = groups.slice(0, MOST).map(([pod, ...more]) => element("tr", {},
    element("th", { scope: "row" }, element("button", { class: "link", onclick: () => open({ pod: podKey(pod) }) }, nameElement(podKey(pod))), more.length ? ` and ${more.length} more` : ""),
    element("td", {}, pod.asks),
    element("td", { "data-of": "Gang" }, pod.gang ? nameElement(pod.gang) : ""),
    element("td", { "data-of": "Waits" }, pod.waits ?? ""),
    element("td", { "data-of": "Age", class: "number" }, agoText(pod.created, now))));
  place.replaceChildren(
    element("table", { class: "stacked" }, element("thead", {}, element("tr", {}, ["Pod", "Asks", "Gang", "Waits", "Age"].map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, rows)),
    groups.length > MOST ? element("p", { class: "hint" }, `... and ${groups.length - MOST} more; use the search to find them`) : "");
}
