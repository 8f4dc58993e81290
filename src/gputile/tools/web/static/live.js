// The connection to the server: loads the state, follows its changes, and sends requests.

import { Turns } from "./turns.js";

const RETRY_MS = 2000;
const HEAD_MS = 30000; // how long to wait for the beginning of the state
const SILENCE_MS = 45000; // after three missing heartbeats the connection is regarded as lost
const LISTEN_MS = 5000;
const PATIENCE_MS = 60000; // how long to retry while the server has too many requests
const AWAY = "gputile web does not answer: it has ended, or cannot be reached. Trying again.";

export class Live {
  constructor(handlers) {
    this.handlers = handlers;
    this.epoch = "";
    this.revision = 0;
    this.current = false; // whether the page is complete up to `revision`
    this.loading = null; // the AbortController of the load in progress
    this.began = -Infinity;
    this.lastEvent = 0;
    this.source = null;
    this.turns = new Turns(() => this.follow(), () => this.letGo());
  }

  async start() {
    clearTimeout(this.timer);
    this.current = false;
    this.turns.leave();
    const loading = this.loading = new AbortController();
    this.began = performance.now();
    try {
      // The first load begins with the nodes of the first screen. Later loads request the whole state at once.
      for (let part = this.epoch ? "state" : "first"; part; ) {
        const late = setTimeout(() => loading.abort(), HEAD_MS);
        const answer = await fetch(`/api/${part}`, { signal: loading.signal });
        clearTimeout(late);
        if (answer.status === 401) {
          this.loading = null;
          this.handlers.lost((await answer.text()).trim());
          return;
        }
        if (!answer.ok) throw new Error(`${answer.status}`);
        const state = await answer.json();
        this.handlers.state(state);
        part = state.more ? "state" : "";
        if (!part) [this.epoch, this.revision] = [state.epoch, state.revision];
      }
    } catch {
      this.lose();
      return;
    }
    this.loading = null;
    this.current = true;
    if (!document.hidden) this.turns.enter();
  }

  // A hidden page closes its stream of changes. When the page is visible again, the stream catches up.
  onSight() {
    if (document.hidden) {
      clearTimeout(this.timer);
      this.turns.leave();
      this.handlers.rested();
    } else if (this.current) this.turns.enter();
    else if (!this.loading) this.start();
  }

  follow() {
    this.letGo();
    this.lastEvent = performance.now();
    this.source = new EventSource(`/api/changes?epoch=${encodeURIComponent(this.epoch)}&after=${this.revision}`);
    const on = (kind, act) => this.source.addEventListener(kind, (event) => {
      this.lastEvent = performance.now();
      if (event.lastEventId) this.revision = Number(event.lastEventId);
      act(JSON.parse(event.data));
    });
    on("change", (difference) => this.handlers.change(difference));
    on("status", (status) => this.handlers.status(status));
    on("beat", () => {});
    on("reload", () => this.again(performance.now() - this.began < RETRY_MS ? RETRY_MS : 0));
    this.source.addEventListener("open", () => this.handlers.connected());
    this.source.addEventListener("error", () => this.lose());
    this.listening = setInterval(() => performance.now() - this.lastEvent > SILENCE_MS && this.lose(), LISTEN_MS);
  }

  letGo() {
    clearInterval(this.listening);
    this.source?.close();
    this.source = null;
  }

  lose() {
    this.handlers.lost(AWAY);
    this.again(RETRY_MS);
  }

  again(ms) {
    this.loading = null;
    this.current = false;
    this.turns.leave();
    clearTimeout(this.timer);
    if (!document.hidden) this.timer = setTimeout(() => this.start(), ms);
  }

  // Request the explanation of a pod. Retry while the server is busy and `wanted()` is true.
  async pod(key, wanted) {
    return patient(() => fetch(`/api/pod?${podQuery(key)}`), wanted);
  }

  async usage(names) {
    return read(await fetch(`/api/usage?${new URLSearchParams(names.map((name) => ["node", name]))}`));
  }

  async podUsage(key) {
    return read(await fetch(`/api/pod-usage?${podQuery(key)}`));
  }

  async logOut() {
    await fetch("/logout", { method: "POST", redirect: "manual" });
  }

  // `nodes` are descriptions of added nodes, such as 2x8xH100:cgpu.
  async whatIf(manifest, nodes) {
    const query = nodes.map((text) => `node=${encodeURIComponent(text)}`).join("&");
    return patient(() => fetch(`/api/what-if?${query}`, { method: "POST", body: manifest, headers: { "Content-Type": "application/yaml" } }), () => true);
  }
}

function podQuery(key) {
  const slash = key.indexOf("/");
  return new URLSearchParams({ namespace: key.slice(0, slash), name: key.slice(slash + 1) });
}

// Retry while the server is busy, after random pauses, so that waiting pages do not retry at the same time.
async function patient(request, wanted) {
  const until = performance.now() + PATIENCE_MS;
  for (;;) {
    const answer = await request();
    if (answer.status !== 503 || !wanted() || performance.now() > until) return read(answer);
    await new Promise((over) => setTimeout(over, RETRY_MS * (0.5 + Math.random())));
  }
}

// Return the JSON of a response. Errors of the server have a `status`; errors without one mean that no response came.
async function read(answer) {
  if (!answer.ok) throw Object.assign(new Error((await answer.text()).trim() || `${answer.status}`), { status: answer.status });
  return answer.json();
}
