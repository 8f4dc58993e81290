// The panel beside the tiles that shows a pod or a node. When the panel is drawn again, scroll position, open details
// and focus stay.

import { element, nameElement } from "./elements.js";

const TARGETS = "button, summary";

export function fillFrame(place, { kind, title, close }, parts) {
  const same = place.dataset.kind === kind && place.dataset.title === title;
  const focused = place.contains(document.activeElement);
  const before = same ? { top: place.scrollTop, unfolded: unfolded(place), target: [...place.querySelectorAll(TARGETS)].indexOf(document.activeElement) } : null;
  [place.dataset.kind, place.dataset.title] = [kind, title];
  place.replaceChildren(
    element("div", { class: "panel-head" }, element("div", {}, element("small", {}, kind), element("h2", {}, nameElement(title))),
      element("button", { class: "quiet", id: "panel-close", "aria-label": "Close", onclick: close }, "✕")), ...parts);
  if (before) {
    for (const each of place.querySelectorAll("details")) each.open = before.unfolded.has(nameOf(each));
    place.scrollTop = before.top;
  }
  if (focused || (!same && (!document.activeElement || document.activeElement === document.body))) {
    (place.querySelectorAll(TARGETS)[before?.target ?? 0] ?? place.querySelector("#panel-close")).focus({ preventScroll: true });
  }
}

// Whether the user has selected text in the panel. Drawing it again would end the selection.
export function isMarked(place) {
  const marked = document.getSelection();
  return Boolean(marked && !marked.isCollapsed && place.contains(marked.anchorNode));
}

function unfolded(place) {
  return new Set([...place.querySelectorAll("details[open]")].map(nameOf));
}

function nameOf(details) {
  return details.querySelector(".verdict-name").textContent;
}
