// Computes the positions of rows and tiles without the document, so that rows out of sight cost nothing.

import { badgesOf } from "./model.js";

export const TILE_HEIGHT = 56;
export const TILE_GAP = 8;
const ROW_PADDING = 14;
const NAME_WIDTH = 194;
const NAME_GAP = 16;
const NAME_HEIGHT = 44; // the height of a node's name with one line below
const BADGE_LINE = 18;
const BADGE_FRAME = 16; // the width of a badge without its text, with the gap to the next badge
const LETTER_WIDTH = 7.6; // the average in the widest of the page's fonts
const LINE_HEIGHT = 22; // the height of a line of pods that have MIG instances or unknown GPUs
const NARROW = 720;
const LEAST_TILE = 88;
const MOST_TILE = 330;

export function frameOf(width, nodes) {
  const narrow = width < NARROW;
  const room = Math.max(LEAST_TILE, width - (narrow ? 24 : NAME_WIDTH + NAME_GAP + 36));
  let least = Infinity, most = 0, widest = 0;
  for (const node of nodes) {
    let sum = 0;
    for (const gpu of node.gpus ?? []) {
      least = Math.min(least, gpu.total);
      most = Math.max(most, gpu.total);
      sum += gpu.total;
    }
    widest = Math.max(widest, sum);
  }
  if (!most) return { narrow, room, scale: 1 };
  // The largest node should fit in one line, but each GPU must be large enough to be read.
  const fitting = (room - 8 * TILE_GAP) / widest;
  const scale = Math.min(Math.max(fitting, LEAST_TILE / Math.max(least, most / 8)), Math.min(MOST_TILE, room) / most);
  return { narrow, room, scale };
}

export function tileWidth(gpu, frame) {
  return Math.max(48, Math.round(gpu.total * frame.scale));
}

function isAnyUnplaced(node) {
  return (node.pods ?? []).some((pod) => !pod.shares && !pod.instances);
}

// The height of a node's name, the line below, and all its badges, so that no badge is cut off.
function nameHeight(node, frame) {
  const room = frame.narrow ? frame.room : NAME_WIDTH;
  let lines = 0, used = Infinity;
  for (const { text } of badgesOf(node)) {
    const width = BADGE_FRAME + text.length * LETTER_WIDTH;
    if (used + width > room) {
      lines += 1;
      used = 0;
    }
    used += width;
  }
  return NAME_HEIGHT + lines * BADGE_LINE;
}

export function rowHeight(node, frame) {
  let lines = 1, used = 0;
  for (const gpu of node.gpus ?? []) {
    const width = tileWidth(gpu, frame);
    if (used && used + TILE_GAP + width > frame.room) {
      lines += 1;
      used = 0;
    }
    used += (used ? TILE_GAP : 0) + width;
  }
  if (!node.gpus?.length) lines = 0;
  const otherLines = (node.instances?.length ?? 0) + (isAnyUnplaced(node) ? 1 : 0);
  const tiles = lines * TILE_HEIGHT + otherLines * LINE_HEIGHT + Math.max(0, lines + otherLines - 1) * TILE_GAP;
  return ROW_PADDING + (frame.narrow ? nameHeight(node, frame) + tiles : Math.max(tiles, nameHeight(node, frame)));
}

export class RowOffsets {
  constructor(nodes, frame) {
    this.tops = new Float64Array(nodes.length + 1);
    for (let i = 0; i < nodes.length; i += 1) this.tops[i + 1] = this.tops[i] + rowHeight(nodes[i], frame);
  }

  get height() {
    return this.tops[this.tops.length - 1];
  }

  // The number of the row at height `y`.
  at(y) {
    let low = 0, high = this.tops.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, Math.max(0, this.tops.length - 2));
  }
}
