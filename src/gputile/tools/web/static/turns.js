// Limits the streams of changes that the windows of a browser have open. A browser opens at most six connections to a
// server for all its windows, and requests need some of them. Four streams are open at most. More windows take turns.

const PLACES = 4;
const TURN_MS = 4000;
const PLACE = "gputile-stream-";

export class Turns {
  // `begin` is called when this window may open its stream, `end` when the window must close it.
  constructor(begin, end) {
    this.begin = begin;
    this.end = end;
    this.leaving = new AbortController();
  }

  // Take part: this window wants a stream from now on.
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

  // Stop taking part, and close the stream of this window.
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

// Whether the browser supports locks for this page. Browsers that refuse storage also refuse locks.
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
