// Colours and letters of blocks. A group never changes its colour and letter, so that the picture stays stable.

import { workloadOf } from "./model.js";

const HUES = [172, 42, 217, 335, 95, 268, 18, 195, 300, 62, 240, 130];
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const USES = [[0.25, "under 25 %", 195], [0.5, "under 50 %", 150], [0.75, "under 75 %", 62], [Infinity, "75 % and more", 18]];
const UNKNOWN = { hue: 268, letter: "?", name: "not measured" };
const AGES = [[3600, "under an hour", 172], [86400, "under a day", 95], [604800, "under a week", 42], [Infinity, "older", 268]];

export class Colours {
  constructor() {
    this.by = "namespace";
    this.chosen = false; // by the user
    this.assigned = { namespace: new Map(), workload: new Map() };
  }

  get slots() {
    return this.assigned[this.by] ?? this.assigned.namespace;
  }

  // Assign slots to new groups, those with the most memory first.
  learn(groups) {
    const fresh = [...groups].filter(([name]) => !this.slots.has(name));
    fresh.sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    for (const [name] of fresh) this.slots.set(name, this.slots.size);
  }

  // `used` is the part of its booked memory that the pod uses, or null if unknown.
  of(pod, gpu, now, used) {
    if (this.by === "memory") return used === null ? UNKNOWN : bucketOf(USES, used);
    if (this.by === "use") return bucketOf(USES, gpu && gpu.total ? (gpu.booked ?? 0) / gpu.total : 0);
    if (this.by === "age") return bucketOf(AGES, pod.created ? now - pod.created : Infinity);
    return this.ofGroup(this.by === "workload" ? workloadOf(pod) : pod.namespace);
  }

  ofGroup(name) {
    const slot = this.slots.get(name) ?? this.slots.size;
    return { hue: HUES[slot % HUES.length], letter: letterOf(slot), name };
  }

  legend(groups) {
    if (this.by === "memory") return [...USES.map((_, number) => bucket(USES, number)), UNKNOWN];
    if (this.by === "use") return USES.map((_, number) => bucket(USES, number));
    if (this.by === "age") return AGES.map((_, number) => bucket(AGES, number));
    return [...groups.keys()].sort((a, b) => (this.slots.get(a) ?? 0) - (this.slots.get(b) ?? 0)).map((name) => this.ofGroup(name));
  }
}

// The letter of a slot: A to z, then A2 to z2 and so on.
function letterOf(slot) {
  const round = Math.floor(slot / LETTERS.length);
  return `${LETTERS[slot % LETTERS.length]}${round ? round + 1 : ""}`;
}

function bucket(buckets, number) {
  return { hue: buckets[number][2], letter: LETTERS[number], name: buckets[number][1] };
}

function bucketOf(buckets, value) {
  return bucket(buckets, buckets.findIndex(([below]) => value < below || below === Infinity));
}
