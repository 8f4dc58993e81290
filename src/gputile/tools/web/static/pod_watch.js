// Asks about the pod that is open: when it is opened, when it has changed, and again after a while, since its Events and
// what the nodes say of it change too.

const AGAIN_MS = 15000;
const COST = 10; // what takes the server long, it is asked for less often

export class PodWatch {
  // `ask` gets a key and a function that says whether the answer is still wanted; `show` gets the key, and the answer
  // or the error.
  constructor(ask, show) {
    this.ask = ask;
    this.show = show;
    this.key = "";
    this.number = 0; // of the latest question: an answer to an earlier one is left out
    this.timer = 0;
  }

  open(key) {
    this.key = key;
    this.known = false;
    this.look();
  }

  close() {
    this.key = "";
    this.number += 1;
    clearTimeout(this.timer);
  }

  // What is shown of the pod has changed: ask now.
  changed() {
    if (this.key) this.look();
  }

  async look() {
    clearTimeout(this.timer);
    const { key } = this;
    const number = this.number += 1;
    const wanted = () => number === this.number;
    const began = performance.now();
    if (!document.hidden || !this.known) {
      try {
        const answer = await this.ask(key, wanted);
        if (!wanted()) return;
        this.known = true;
        this.show(key, answer, null);
      } catch (error) {
        if (!wanted()) return;
        if (!this.known || error.status < 500) this.show(key, null, error); // else what is shown is the last that was said
      }
    }
    this.timer = setTimeout(() => this.look(), Math.max(AGAIN_MS, COST * (performance.now() - began)));
  }
}
