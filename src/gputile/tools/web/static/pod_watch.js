// Requests the explanation of the open pod when the pod is opened, when it has changed, and then regularly, because
// its Events and the nodes' verdicts change too.

const AGAIN_MS = 15000;
const COST = 10; // the pause is at least this many times the duration of the request, to spare the server

export class PodWatch {
  // `request` is called with a key and with a function that returns whether the answer is still wanted. `show` is called
  // with the key, and the answer or the error.
  constructor(request, show) {
    this.request = request;
    this.show = show;
    this.key = "";
    this.number = 0; // the number of the latest request; answers to earlier requests are ignored
    this.timer = 0;
  }

  open(key) {
    this.key = key;
    this.known = false;
    this.poll();
  }

  close() {
    this.key = "";
    this.number += 1;
    clearTimeout(this.timer);
  }

  // Request a new explanation now, because the pod's record has changed.
  changed() {
    if (this.key) this.poll();
  }

  async poll() {
    clearTimeout(this.timer);
    const { key } = this;
    const number = this.number += 1;
    const wanted = () => number === this.number;
    const began = performance.now();
    if (!document.hidden || !this.known) {
      try {
        const answer = await this.request(key, wanted);
        if (!wanted()) return;
        this.known = true;
        this.show(key, answer, null);
      } catch (error) {
        if (!wanted()) return;
        if (!this.known || error.status < 500) this.show(key, null, error); // otherwise the last explanation stays on the page
      }
    }
    this.timer = setTimeout(() => this.poll(), Math.max(AGAIN_MS, COST * (performance.now() - began)));
  }
}
