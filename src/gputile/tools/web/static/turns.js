// Which windows of a browser hold a stream. A browser opens six connections to one server for all its windows together,
// and questions need some of them: more windows than there are places have them in turns.

const PLACES = 4;
const TURN_MS = 4000;
const PLACE = "gputile-stream-";

export class Turns {
  // `begin` is called when this window has a place, `end` when it has it no longer.
  constructor(begin, end) {
    this.begin = begin;
    this.end = end;
    this.leaving = new AbortController();
  }

  // Want a place from now on.
  async enter() {
    this.leave();
    const { signal } = this.leaving = new AbortController();
    if (!(await locksAnswer())) {
      if (!signal.aborted) this.begin();
      return;
    }
    while (!signal.aborted) {
      const place = await likelyPlace();
      try {
        await navigator.locks.request(place, { signal }, () => this.turn(place, signal));
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    }
  }

  // Want none, and leave that which this window has.
  leave() {
    this.leaving.abort();
    this.end();
  }

  async turn(place, signal) {
    if (signal.aborted) return;
    this.begin();
    do await pause(TURN_MS, signal);
    while (!signal.aborted && !(await isWaitedFor(place)));
    if (!signal.aborted) this.end();
  }
}

// There are none where the browser keeps nothing for the page.
async function locksAnswer() {
  try {
    return Boolean(await navigator.locks?.query());
  } catch {
    return false;
  }
}

async function likelyPlace() {
  const { held } = await navigator.locks.query();
  const places = Array.from({ length: PLACES }, (_, number) => `${PLACE}${number}`);
  return places.find((place) => !held.some(({ name }) => name === place)) ?? places[Math.floor(Math.random() * PLACES)];
}

async function isWaitedFor(place) {
  return (await navigator.locks.query()).pending.some(({ name }) => name === place);
}

function pause(ms, signal) {
  return new Promise((over) => {
    const timer = setTimeout(over, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      over();
    });
  });
}
