// The pods that ask for GPUs and have no node.

import { hasAll, wordsIn } from "./choice.js";
import { element, nameElement } from "./elements.js";
import { agoText, podKey } from "./model.js";

const MOST = 500;

// The pods that the search and the filters leave.
export function waiting(pods, wanted) {
  const words = wordsIn(wanted.search);
  return pods.filter((pod) => (!wanted.namespace || pod.namespace === wanted.namespace)
    && hasAll([podKey(pod), pod.gang ?? "", pod.asks].join("\n").toLowerCase(), words));
}

export function focusOnPending(place, key) {
  [...place.querySelectorAll(".link")].find((link) => link.textContent === key)?.focus();
}

// `all` is how many pods wait, beside those that are shown.
export function drawPending(place, pods, all, open, now) {
  if (!pods.length) {
    place.replaceChildren(element("p", { class: "nothing" }, all ? `No pod that waits is like that: the search and the filters leave none of ${all}.` : "No pod waits for a GPU."));
    return;
  }
  const sorted = [...pods].sort((a, b) => (a.created || Infinity) - (b.created || Infinity) || (podKey(a) < podKey(b) ? -1 : 1));
  const rows = sorted.slice(0, MOST).map((pod) => element("tr", {},
    element("th", { scope: "row" }, element("button", { class: "link", onclick: () => open({ pod: podKey(pod) }) }, nameElement(podKey(pod)))),
    element("td", {}, pod.asks),
    element("td", { "data-of": "Gang" }, pod.gang ? nameElement(pod.gang) : ""),
    element("td", { "data-of": "Waits" }, pod.waits ?? ""),
    element("td", { "data-of": "Age", class: "number" }, agoText(pod.created, now))));
  place.replaceChildren(
    element("table", { class: "stacked" }, element("thead", {}, element("tr", {}, ["Pod", "Asks", "Gang", "Waits", "Age"].map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, rows)),
    sorted.length > MOST ? element("p", { class: "hint" }, `... and ${sorted.length - MOST} more; search narrows them`) : "");
}
