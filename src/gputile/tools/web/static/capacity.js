// The view "Capacity": the largest share that fits, free whole GPUs and sets of them, and free memory by size.

import { element, nameElement } from "./elements.js";
import { amountText, factsOf } from "./model.js";

const SIZES = [1, 2, 4, 8, 16, 32, 64, 128, Infinity]; // upper limits of the table's rows in GiB, as in the metrics
const SETS = [1, 2, 4, 8, 16];

export function capacityOf(nodes, model) {
  const capacity = { largest: 0, largestOn: "", shares: 0, free: 0, total: 0, whole: 0, wholeOn: 0, largestSet: 0, sets: new Map(), instances: new Map(), turns: 0, allTurns: 0, holes: SIZES.map(() => ({ count: 0, mib: 0 })) };
  for (const node of nodes) {
    if (!node.serves || node.cordoned) continue;
    const on = factsOf(node).on;
    let empty = 0;
    for (const gpu of node.gpus ?? []) {
      if (gpu.healthy === false) continue;
      if (model && gpu.model !== model) continue;
      capacity.total += gpu.total;
      const pods = on.get(gpu.index)?.length ?? 0;
      if (node.replicas) {
        const turns = Math.max(0, node.replicas - Math.max(pods, gpu.pods ?? 0));
        capacity.allTurns += node.replicas;
        capacity.turns += turns;
        capacity.free += Math.floor((gpu.total * turns) / node.replicas);
        continue;
      }
      if (node.serves === "gpus") {
        if (!pods && !gpu.pods) {
          empty += 1;
          capacity.free += gpu.total;
        }
        continue;
      }
      const hole = Math.max(0, gpu.total - (gpu.booked ?? 0));
      capacity.free += hole;
      if (!hole) continue;
      capacity.shares += 1;
      const bin = capacity.holes[SIZES.findIndex((size) => hole < size * 1024)];
      bin.count += 1;
      bin.mib += hole;
      if (hole > capacity.largest) {
        capacity.largest = hole;
        capacity.largestOn = `${node.name}, GPU ${gpu.index}`;
      }
    }
    for (const { profile, total, booked = 0 } of model ? [] : node.instances ?? []) { // a profile's GPU model is unknown
      const known = capacity.instances.get(profile) ?? { free: 0, total: 0 };
      capacity.instances.set(profile, { free: known.free + Math.max(0, total - booked), total: known.total + total });
    }
    capacity.whole += empty;
    if (empty) capacity.wholeOn += 1;
    capacity.largestSet = Math.max(capacity.largestSet, empty);
    for (const size of SETS) if (empty >= size) capacity.sets.set(size, (capacity.sets.get(size) ?? 0) + Math.floor(empty / size));
  }
  return capacity;
}

export function drawCapacity(place, nodes, model) {
  const capacity = capacityOf(nodes, model);
  const most = Math.max(1, ...capacity.holes.map((hole) => hole.mib));
  const rows = capacity.holes.map((hole, number) => element("tr", {},
    element("th", { scope: "row" }, holeText(number)),
    element("td", { class: "number" }, `${hole.count}`),
    element("td", { class: "number" }, `${amountText(hole.mib)} GiB`),
    element("td", { class: "wide" }, element("div", { class: "meter", width: `${(hole.mib / most) * 100}%` }))));
  place.replaceChildren(
    element("div", { class: "cards" },
      card("Largest share that fits", capacity.largest ? `${amountText(capacity.largest)} GiB` : "none", capacity.largestOn ? ["on ", nameElement(capacity.largestOn)] : ["no shared GPU has free memory"]),
      card("GPUs with room for a share", `${capacity.shares}`, ["shared GPUs with free memory"]),
      card("Whole GPUs that are free", `${capacity.whole}`, [`on ${capacity.wholeOn} nodes that serve whole GPUs`]),
      card("Largest set on one node", capacity.largestSet ? `${capacity.largestSet} GPUs` : "none", ["whole GPUs of one node for one pod"]),
      capacity.allTurns ? card("Free replicas", `${capacity.turns}`, [`of ${capacity.allTurns} on time-sliced GPUs`]) : null,
      card("Free memory", `${amountText(capacity.free)} GiB`, [capacity.total ? `${Math.round((capacity.free / capacity.total) * 100)} % of ${amountText(capacity.total)} GiB` : "no GPUs"])),
    element("div", { class: "columns" },
      element("table", {}, element("caption", {}, "Free memory of shared GPUs, by the size of the hole"),
        element("thead", {}, element("tr", {}, ["Hole", "GPUs", "Together", ""].map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, rows)),
      element("table", {}, element("caption", {}, "Sets of whole GPUs on one node that fit now"),
        element("thead", {}, element("tr", {}, ["Set", "How many"].map((text) => element("th", { scope: "col" }, text)))),
        element("tbody", {}, SETS.map((size) => element("tr", {}, element("th", { scope: "row" }, size === 1 ? "1 GPU" : `${size} GPUs`), element("td", { class: "number" }, `${capacity.sets.get(size) ?? 0}`))))),
      capacity.instances.size ? profilesElement(capacity.instances) : null),
    element("p", { class: "hint" }, "Only memory is counted, and only on nodes that accept pods: cordoned nodes, nodes that are not ready and nodes without GPUs are excluded. Whether a pod fits also depends on compute, taints, gangs and affinity. Use What if for one pod."));
}

function profilesElement(instances) {
  const rows = [...instances].sort(([one], [other]) => one.localeCompare(other));
  return element("table", { class: "profiles" }, element("caption", {}, "MIG instances, by profile"),
    element("thead", {}, element("tr", {}, ["Profile", "Free", "Of"].map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, rows.map(([profile, { free, total }]) => element("tr", {}, element("th", { scope: "row" }, nameElement(profile)), element("td", { class: "number" }, `${free}`), element("td", { class: "number" }, `${total}`)))));
}

function holeText(number) {
  const lower = number ? SIZES[number - 1] : 0;
  if (SIZES[number] === Infinity) return `${lower} GiB and more`;
  return lower ? `${lower} to under ${SIZES[number]} GiB` : `under ${SIZES[number]} GiB`;
}

function card(title, value, more) {
  return element("div", { class: "card" }, element("h3", {}, title), element("strong", {}, value), element("p", {}, more));
}
