// What pods and GPUs use: asked for the nodes in sight while somebody looks, and drawn beside what is booked.

import { element } from "./elements.js";
import { amountText } from "./model.js";

const ASK_EVERY_MS = 10000;
const ASK_SOON_MS = 1200; // what nobody looked at before has to be read first
const HOUR_S = 3600;
const GAP_S = 180; // an agent's samples are a minute apart: between points that are further nobody has measured
const SVG = "http://www.w3.org/2000/svg";

// Asks `ask` again and again of what `inSight` names; `show` gets the answers and what was asked.
export class UsageWatch {
  constructor(inSight, ask, show) {
    this.inSight = inSight;
    this.ask = ask;
    this.show = show;
    this.timer = 0;
  }

  soon(ms = 300) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), ms);
  }

  async look() {
    const names = document.hidden ? [] : this.inSight();
    let again = ASK_EVERY_MS;
    if (names.length) {
      try {
        const answer = await this.ask(names);
        this.show(answer, names);
        if (!answer.trouble && names.some((name) => !answer.nodes?.[name])) again = ASK_SOON_MS;
      } catch {
        // the stream of changes says that the server is away
      }
    }
    this.soon(again);
  }
}

// What a pod uses, in words; "" where that is not known. `timeOf` says of what its GPU time is, where that is not plain.
export function useText(usage, timeOf = "") {
  if (!usage) return "";
  const [mib, percent] = usage;
  const parts = [];
  if (mib !== null && mib !== undefined) parts.push(`uses ${amountText(mib)} GiB`);
  if (percent !== null && percent !== undefined) parts.push(`${percent} % of a GPU's time${timeOf && ` ${timeOf}`}`);
  return parts.join(", ");
}

// What a pod uses of the GPU with this index, in words: its GPU time is that of all its GPUs.
export function useTextOn(usage, index) {
  return useText(usage && [usedOn(usage, index), usage[1]], "in all");
}

// What a pod uses of one of its GPUs, MiB; null where it is not known.
export function usedOn(usage, index) {
  return usage?.[2]?.[index] ?? null;
}

// The part of what is booked that is used, from 0 to 1; null where it is not known.
export function usedPart(mib, booked) {
  return mib !== null && booked ? Math.min(1, mib / booked) : null;
}

// Write what is used into the places that a panel has for it.
export function fillUse(panel, usage) {
  for (const place of panel.querySelectorAll("[data-use-of]")) {
    const use = usage?.pods?.[place.dataset.useOf];
    const text = place.dataset.useOn === undefined ? useText(use) : useTextOn(use, place.dataset.useOn);
    place.textContent = text ? `, ${text}` : "";
  }
  for (const place of panel.querySelectorAll("[data-use-gpu]")) {
    const mib = usage?.gpus?.[place.dataset.useGpu];
    place.textContent = mib === undefined ? "" : `, ${amountText(mib)} GiB in use`;
  }
  for (const place of panel.querySelectorAll("[data-use-problem]")) place.textContent = usage?.problem ?? "";
}

// What is known of a pod's use: the last hour stays while what it uses now is not known.
export function podUse(answer, now) {
  const samples = answer.samples ?? [];
  return [
    usedNow(answer, samples.length > 0),
    drawing("GPU memory, GiB", samples.map(([at, mib]) => [at, mib]), now, amountText),
    drawing("GPU time, percent of one GPU", samples.map(([at, , percent]) => [at, percent]), now, (value) => `${value}`),
  ];
}

function usedNow(answer, measuredBefore) {
  if (answer.trouble) return element("p", { class: "hint" }, `not known: ${answer.trouble}`);
  const text = useText(answer.usage);
  return text ? element("p", {}, text) : element("p", { class: "hint" }, measuredBefore ? "nothing is measured of it now" : "not measured yet");
}

// The last hour, a line for each time without gaps; "" where there is nothing to draw it by.
function drawing(title, points, now, text) {
  const known = points.filter(([at, value]) => value !== null && value !== undefined && at >= now - HOUR_S);
  if (known.length < 2) return "";
  const most = Math.max(1, ...known.map(([, value]) => value));
  const lines = [];
  known.forEach(([at, value], number) => {
    if (!number || at - known[number - 1][0] > GAP_S) lines.push([]);
    lines.at(-1).push(`${(300 * (1 - (now - at) / HOUR_S)).toFixed(1)},${(40 - (38 * value) / most).toFixed(1)}`);
  });
  const svg = svgElement("svg", { viewBox: "0 0 300 42", preserveAspectRatio: "none", "aria-hidden": "true" }, ...lines.map((points) => svgElement("polyline", { points: points.join(" ") })));
  const since = new Date(known[0][0] * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return element("figure", { class: "use" }, svg, element("figcaption", {}, `${title}: most ${text(most)} since ${since}`));
}

function svgElement(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
