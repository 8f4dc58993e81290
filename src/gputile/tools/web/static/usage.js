// The use of pods and GPUs, which is requested for the nodes in sight and drawn beside the booked amounts.

import { element } from "./elements.js";
import { amountText } from "./model.js";

const ASK_EVERY_MS = 10000;
const ASK_SOON_MS = 1200; // after the first request for a node, which the server must read first
const HOUR_S = 3600;
const GAP_S = 180; // points that are further apart are not connected: nothing was measured between them
const SVG = "http://www.w3.org/2000/svg";

// Calls `request` regularly with the node names that `inSight` returns, and `show` with the answer and these names.
export class UsageWatch {
  constructor(inSight, request, show) {
    this.inSight = inSight;
    this.request = request;
    this.show = show;
    this.timer = 0;
  }

  soon(ms = 300) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), ms);
  }

  async poll() {
    const names = document.hidden ? [] : this.inSight();
    let again = ASK_EVERY_MS;
    if (names.length) {
      try {
        const answer = await this.request(names);
        this.show(answer, names);
        if (!answer.trouble && names.some((name) => !answer.nodes?.[name])) again = ASK_SOON_MS;
      } catch {
        // The stream of changes reports a lost connection.
      }
    }
    this.soon(again);
  }
}

// The text for a pod's use, or "" if unknown. `timeOf` follows the GPU time to say which GPUs it covers.
export function useText(usage, timeOf = "") {
  if (!usage) return "";
  const [mib, percent] = usage;
  const parts = [];
  if (mib !== null && mib !== undefined) parts.push(`uses ${amountText(mib)} GiB`);
  if (percent !== null && percent !== undefined) parts.push(`${percent} % of a GPU's time${timeOf && ` ${timeOf}`}`);
  return parts.join(", ");
}

// The text for a pod's use of one GPU. The GPU time in it covers all GPUs of the pod.
export function useTextOn(usage, index) {
  return useText(usage && [usedOn(usage, index), usage[1]], "in all");
}

// The memory that a pod uses on one of its GPUs in MiB, or null if unknown.
export function usedOn(usage, index) {
  return usage?.[2]?.[index] ?? null;
}

// The used part of the booked memory, from 0 to 1, or null if unknown.
export function usedPart(mib, booked) {
  return mib !== null && booked ? Math.min(1, mib / booked) : null;
}

// Write the use of pods and GPUs into the panel's elements for it.
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

// The elements for a pod's use: the use now, and drawings of the last hour, even if the use now is unknown.
export function podUse(answer, now) {
  const samples = answer.samples ?? [];
  return [
    usedNow(answer, samples.length > 0),
    drawing("GPU memory, GiB", samples.map(([at, mib]) => [at, mib]), now, amountText),
    drawing("GPU time, percent of one GPU", samples.map(([at, , percent]) => [at, percent]), now, (value) => `${value}`),
  ];
}

function usedNow(answer, measuredBefore) {
  if (answer.trouble) return element("p", { class: "hint" }, `unknown: ${answer.trouble}`);
  const text = useText(answer.usage);
  return text ? element("p", {}, text) : element("p", { class: "hint" }, measuredBefore ? "not measured at the moment" : "not measured yet");
}

// A drawing of the last hour, with a separate line after each gap, or "" if there are fewer than two points.
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
  return element("figure", { class: "use" }, svg, element("figcaption", {}, `${title}: maximum ${text(most)} since ${since}`));
}

function svgElement(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
