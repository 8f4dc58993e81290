// The page's data: the server's first state with all later differences. This module never touches the document.

export class Model {
  constructor() {
    this.nodes = new Map();
    this.pending = new Map();
    this.ghosts = new Map(); // node name -> pods that "What if" has placed there
    this.usage = new Map(); // node name -> the latest measurements of its agent
    this.loaded = false;
    this.whole = false; // false while only the nodes of the first screen are loaded
  }

  load(state) {
    this.nodes = new Map(state.nodes.map((node) => [node.name, node]));
    this.pending = new Map(state.pending.map((pod) => [podKey(pod), pod]));
    this.loaded = true;
    this.whole = !state.more;
  }

  measured(names, answer) {
    for (const name of names) {
      const now = answer.nodes?.[name];
      if (!now) this.usage.delete(name);
      else if (JSON.stringify(now) !== JSON.stringify(this.usage.get(name))) this.usage.set(name, now);
    }
  }

  // Apply a difference, and return whether it changed what is known of the pod `key`.
  apply(difference, key) {
    const names = [...(difference.nodesGone ?? []), ...Object.keys(difference.nodes ?? {})];
    const before = key ? this.recordOf(key, names) : "";
    for (const name of difference.nodesGone ?? []) this.nodes.delete(name);
    for (const [name, node] of Object.entries(difference.nodes ?? {})) this.nodes.set(name, node);
    for (const each of difference.pendingGone ?? []) this.pending.delete(each);
    for (const [each, pod] of Object.entries(difference.pending ?? {})) this.pending.set(each, pod);
    return key ? this.recordOf(key, names) !== before : false;
  }

  // The text of all records of a pod, pending and on these nodes, for comparisons.
  recordOf(key, names) {
    return JSON.stringify([this.pending.get(key), names.map((name) => this.nodes.get(name)?.pods?.find((pod) => podKey(pod) === key))]);
  }
}

export function podKey(pod) {
  return `${pod.namespace}/${pod.name}`;
}

// Caches `compute(node)` for each node record. This is safe because records are replaced but never changed.
function ofNode(compute) {
  const known = new WeakMap();
  return (node) => {
    let found = known.get(node);
    if (found === undefined) known.set(node, found = compute(node));
    return found;
  };
}

export const factsOf = ofNode((node) => {
  const facts = { total: 0, booked: 0, gpus: 0, busy: 0, sick: 0, pods: 0, reserved: 0, models: new Set(), namespaces: new Map(), on: new Map() };
  for (const gpu of node.gpus ?? []) {
    facts.gpus += 1;
    facts.total += gpu.total;
    facts.booked += Math.min(gpu.booked ?? 0, gpu.total);
    if (gpu.pods) facts.busy += 1;
    if (gpu.healthy === false) facts.sick += 1;
    if (gpu.model) facts.models.add(gpu.model);
    facts.on.set(gpu.index, []);
  }
  for (const pod of node.pods ?? []) {
    if (pod.reserved) facts.reserved += 1;
    else facts.pods += 1;
    let mib = 0;
    for (const [index, amount, percent] of pod.shares ?? []) {
      mib += amount;
      facts.on.get(index)?.push({ pod, mib: amount, percent });
    }
    facts.namespaces.set(pod.namespace, (facts.namespaces.get(pod.namespace) ?? 0) + mib);
  }
  return facts;
});

// Short labels for a node's state, the worst first.
export const badgesOf = ofNode((node) => {
  const facts = factsOf(node);
  const found = [];
  const badge = (kind, text, title) => found.push({ kind, text, title });
  if (node.silent) badge("bad", "agent silent", "Its agent has not reported for some time.");
  if (facts.sick) badge("bad", `${facts.sick} unhealthy`, "New pods cannot use unhealthy GPUs.");
  if (!node.serves && facts.gpus) badge("bad", "takes no pods", (node.problems ?? []).join("\n"));
  if (node.cordoned) badge("warn", "cordoned", "New pods are not scheduled here.");
  if (node.problems && !node.silent && !facts.sick && node.serves) badge("warn", "problem", node.problems.join("\n"));
  const unusual = (node.taints ?? []).filter((taint) => !taint.startsWith("nvidia.com/gpu"));
  if (unusual.length) badge("plain", unusual.length > 1 ? `${unusual.length} taints` : "tainted", unusual.join("\n"));
  if (node.mode === "share" || node.replicas) badge("plain", "no memory limits", "A pod here can use more GPU memory than it asks for.");
  if (facts.reserved) badge("plain", `${facts.reserved} reserved`, "GPUs are reserved for pods that are not bound yet.");
  return found;
});

// The text in which a search looks for words.
export const wordsOf = ofNode((node) => [node.name, node.mode ?? "", ...(node.pods ?? []).map(podKey), ...factsOf(node).models, ...(node.instances ?? []).map((each) => `mig-${each.profile}`)].join("\n").toLowerCase());

const workloadsOf = ofNode((node) => {
  const found = new Map();
  for (const pod of node.pods ?? []) {
    const mib = (pod.shares ?? []).reduce((sum, [, amount]) => sum + amount, 0);
    found.set(workloadOf(pod), (found.get(workloadOf(pod)) ?? 0) + mib);
  }
  return found;
});

// The pods of a node with MIG instances of a profile, and their numbers. Only the node knows which instances pods have.
export function podsOnInstances(node, profile) {
  return (node.pods ?? []).flatMap((pod) => (pod.instances ?? []).filter(([name]) => name === profile).map(([, count]) => ({ pod, count })));
}

export function workloadOf(pod) {
  return pod.workload || pod.name;
}

export function groupsOf(nodes, by) {
  const groups = new Map();
  for (const node of nodes) {
    for (const [name, mib] of by === "workload" ? workloadsOf(node) : factsOf(node).namespaces) groups.set(name, (groups.get(name) ?? 0) + mib);
  }
  return groups;
}

export function totalsOf(nodes) {
  const totals = { nodesWithPods: 0, total: 0, booked: 0, gpus: 0, busy: 0, sick: 0, pods: 0, reserved: 0, troubled: 0, namespaces: new Map(), models: new Set(), modes: new Set() };
  for (const node of nodes) {
    const facts = factsOf(node);
    if (facts.pods) totals.nodesWithPods += 1;
    for (const key of ["total", "booked", "gpus", "busy", "sick", "pods", "reserved"]) totals[key] += facts[key];
    if (node.problems || node.silent) totals.troubled += 1;
    for (const [name, mib] of facts.namespaces) totals.namespaces.set(name, (totals.namespaces.get(name) ?? 0) + mib);
    for (const model of facts.models) totals.models.add(model);
    if (node.mode) totals.modes.add(node.mode);
  }
  return totals;
}

export function amountText(mib) {
  const gib = mib / 1024;
  return Number.isInteger(gib) || gib >= 100 ? `${Math.round(gib)}` : gib.toFixed(gib < 1 ? 2 : 1);
}

export function agoText(created, now) {
  if (!created) return "";
  const seconds = Math.max(0, now - created);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}
