// The way to the server: the state, its changes as they come, and questions.

const RETRY_MS = 2000;

export class Live {
  constructor(handlers) {
    this.handlers = handlers;
    this.epoch = "";
    this.revision = 0;
    this.source = null;
  }

  async start() {
    try {
      const answer = await fetch("/api/state");
      if (answer.status === 401) {
        this.handlers.lost((await answer.text()).trim());
        return;
      }
      if (!answer.ok) throw new Error(`${answer.status}`);
      const state = await answer.json();
      this.epoch = state.epoch;
      this.revision = state.revision;
      this.handlers.state(state);
      this.follow();
    } catch {
      this.handlers.lost("gputile web does not answer: it has ended, or the way to it is cut. Trying again.");
      setTimeout(() => this.start(), RETRY_MS);
    }
  }

  follow() {
    this.source?.close();
    this.source = new EventSource(`/api/changes?epoch=${encodeURIComponent(this.epoch)}&after=${this.revision}`);
    const on = (kind, act) => this.source.addEventListener(kind, (event) => {
      if (event.lastEventId) this.revision = Number(event.lastEventId);
      act(JSON.parse(event.data));
    });
    on("change", (difference) => this.handlers.change(difference));
    on("status", (status) => this.handlers.status(status));
    on("reload", () => this.restart());
    this.source.addEventListener("open", () => this.handlers.connected());
    this.source.addEventListener("error", () => {
      this.handlers.lost("gputile web does not answer: it has ended, or the way to it is cut. Trying again.");
      this.restart();
    });
  }

  restart() {
    this.source?.close();
    this.source = null;
    setTimeout(() => this.start(), RETRY_MS);
  }

  async pod(key) {
    const [namespace, name] = [key.slice(0, key.indexOf("/")), key.slice(key.indexOf("/") + 1)];
    return read(await fetch(`/api/pod?${new URLSearchParams({ namespace, name })}`));
  }

  async usage(names) {
    return read(await fetch(`/api/usage?${new URLSearchParams(names.map((name) => ["node", name]))}`));
  }

  async podUsage(key) {
    const [namespace, name] = [key.slice(0, key.indexOf("/")), key.slice(key.indexOf("/") + 1)];
    return read(await fetch(`/api/pod-usage?${new URLSearchParams({ namespace, name })}`));
  }

  async logOut() {
    await fetch("/logout", { method: "POST", redirect: "manual" });
  }

  async whatIf(manifest) {
    return read(await fetch("/api/what-if", { method: "POST", body: manifest, headers: { "Content-Type": "application/yaml" } }));
  }
}

async function read(answer) {
  if (!answer.ok) throw new Error((await answer.text()).trim() || `${answer.status}`);
  return answer.json();
}
