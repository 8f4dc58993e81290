// Decides which nodes are shown, in which order, and which of their pods match the search and filters.

import { factsOf, podKey, wordsOf } from "./model.js";

// The words of a search.
export function wordsIn(search) {
  return search.toLowerCase().split(/\s+/).filter(Boolean);
}

export function hasAll(text, words) {
  return words.every((word) => text.includes(word));
}

export function chosen(nodes, wanted) {
  const words = wordsIn(wanted.search);
  const found = [];
  for (const node of nodes) {
    if (wanted.mode && node.mode !== wanted.mode) continue;
    const facts = factsOf(node);
    if (wanted.model && !facts.models.has(wanted.model)) continue;
    if (wanted.namespace && !facts.namespaces.has(wanted.namespace)) continue;
    if (words.length && !hasAll(wordsOf(node), words)) continue;
    found.push(node);
  }
  return found.sort(ORDERS[wanted.order] ?? ORDERS.name);
}

export function isMeant(pod, wanted) {
  if (wanted.namespace && pod.namespace !== wanted.namespace) return false;
  const words = wordsIn(wanted.search);
  return !words.length || words.some((word) => podKey(pod).toLowerCase().includes(word));
}

export function narrows(wanted, node) {
  // A search for the node's name or GPU model does not narrow the pods.
  if (wanted.namespace) return true;
  const words = wordsIn(wanted.search);
  return words.length > 0 && (node.pods ?? []).some((pod) => isMeant(pod, wanted));
}

const NUMBERED = new Intl.Collator("en", { numeric: true });

function byName(a, b) {
  return NUMBERED.compare(a.name, b.name);
}

function fullness(node) {
  const facts = factsOf(node);
  return facts.total ? facts.booked / facts.total : 0;
}

function freeMemory(node) {
  const facts = factsOf(node);
  return facts.total - facts.booked;
}

const ORDERS = {
  name: byName,
  full: (a, b) => fullness(b) - fullness(a) || byName(a, b),
  free: (a, b) => freeMemory(b) - freeMemory(a) || byName(a, b),
};
